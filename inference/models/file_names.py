"""What a model calls the weights of its files, as transformers' loader renames them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)


class Piece(NamedTuple):
    """A weight of the files that is some outputs of one expert, in a parameter that has all of them."""

    name: str  # the parameter's
    expert: int
    part: int  # which of the outputs' parts
    parts: int


class FileNames:
    """A model's own names by those of its files: one that sees has other names there."""

    def __init__(self, model: PreTrainedModel) -> None:
        transforms = get_model_conversion_mapping(model)
        self._renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
        self._converters = [each for each in transforms if isinstance(each, WeightConverter)]
        self._prefix = model.base_model_prefix
        self._own = model.state_dict()
        self.parts: Mapping[str, list[str]] = {
            pattern: each.target_patterns for each in self._converters for pattern in each.source_patterns
        }  # what the model makes of weights, by the pattern that their names fit

    def own(self, name: str) -> tuple[str, str | None]:
        """Return the model's name for a weight of the files, and which of the patterns it fits, if any."""
        renamed, source = rename_source_key(name, self._renamings, self._converters, self._prefix, self._own)
        return (name, None) if renamed not in self._own and name in self._own else (renamed, source)

    def piece(self, name: str) -> Piece | None:
        """Return which piece of a mixture's experts a weight of the files is; None if it is none."""
        own, source = self.own(name)
        if source is None:
            return None
        converter = next(each for each in self._converters if source in each.source_patterns)
        whose, _, _ = source.partition("*")
        expert = re.search(rf"\b{re.escape(whose.rstrip('.').split('.')[-1])}\.(\d+)\.", name)
        steps = [(type(each), getattr(each, "dim", None)) for each in converter.operations]
        stacked = steps in ([(MergeModulelist, 0)], [(MergeModulelist, 0), (Concatenate, 1)])
        if expert is None or not stacked or len(converter.target_patterns) > 1:
            return None
        parts = converter.source_patterns
        return Piece(own, int(expert[1]), parts.index(source), len(parts))
