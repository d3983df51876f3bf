"""transformers' processor of a model that sees: an image's numbers, and the tokens that stand for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor, AutoTokenizer, PreTrainedConfig, ProcessorMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from inference.sequences.sight import CannotSee
from inference.vision.reader import Picture

_FILES: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_MARKS = ("image_token", "boi_token")  # what processors call the token that marks an image in a prompt


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """An image as the model's own code takes it, in a prompt of nothing else."""

    ids: tuple[int, ...]  # the tokens that stand for it, but for ordinary text at their edges
    rows: int  # how many of them get rows of the image
    inputs: dict[str, Tensor]  # by the model's own names, the tokens among them


class Processor:
    """Makes what the model reads of images; for one thread."""

    def __init__(self, path: Path, described: PreTrainedConfig) -> None:
        """Load what a model's directory has; raise CannotSee."""
        self._own = _load(path, described)
        self.tokenizer: Any = self._own.tokenizer
        row_id = getattr(described, "image_token_id", None)
        if not isinstance(row_id, int):
            raise CannotSee("its configuration names no token for images")
        self.row_id = row_id
        self.mark, self.mark_id = self._find_mark()
        self.before, self.behind = self._find_edges()

    def prepare(self, picture: Picture) -> Prepared:
        """Return an image by itself; raises whatever the processor does."""
        inputs = self.whole(self.mark, [picture])
        ids = tuple(inputs["input_ids"][0].tolist())
        before, behind = (tuple(self.ids(edge)) for edge in (self.before, self.behind))
        if ids[: len(before)] != before or ids[len(ids) - len(behind) :] != behind:
            raise ValueError("its tokens begin or end otherwise than those of other images")
        ids = ids[len(before) : len(ids) - len(behind)]
        return Prepared(ids, ids.count(self.row_id), inputs)

    @property
    def own(self) -> ProcessorMixin:
        """Return transformers' own."""
        return self._own

    def whole(self, text: str, pictures: Sequence[Picture]) -> dict[str, Tensor]:
        """Return a whole prompt as the model's own code takes it, without tokens that begin or end texts."""
        images = [Image.fromarray(each.pixels) for each in pictures]
        made = self._own(images=[images], text=[text], return_tensors="pt", add_special_tokens=False)
        return {name: value for name, value in made.items() if isinstance(value, Tensor)}

    def ids(self, text: str) -> list[int]:
        """Return a text's tokens."""
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return found

    def prompt_ids(self, text: str) -> list[int]:
        """Return a prompt's tokens, with what is ordinary text of its images, and the marks for the rest."""
        return self.ids(text.replace(self.mark, f"{self.before}{self.mark}{self.behind}"))

    def _find_edges(self) -> tuple[str, str]:
        """Return the ordinary text with which an image's tokens begin and end, as Gemma 3's with line breaks.

        It is no part of what is put into a prompt's tokens: with the text beside it, it may be others.
        """
        ids = self.whole(self.mark, sample_pictures()[:1])["input_ids"][0].tolist()
        added = self.tokenizer.added_tokens_decoder
        special = {self.row_id, self.mark_id, *(each for each, token in added.items() if token.special)}
        sides = [[*takewhile(lambda each: each not in special, way)] for way in (ids, reversed(ids))]
        before, behind = (self.tokenizer.decode(side) for side in (sides[0], sides[1][::-1]))
        whole = self.ids(before) == sides[0] and self.ids(behind) == sides[1][::-1]
        return (before, behind) if whole else ("", "")

    def _find_mark(self) -> tuple[str, int]:
        """Return the token in whose place an image's tokens come."""
        picture, why = sample_pictures()[0], ""
        for name in _MARKS:
            mark = getattr(self._own, name, None) or getattr(self.tokenizer, name, None)
            if not isinstance(mark, str) or len(self.ids(mark)) != 1:
                continue
            try:
                ids = self.whole(mark, [picture])["input_ids"][0].tolist()
            except Exception as error:  # it may refuse a mark that isn't its own in any way
                why = why or f" ({type(error).__name__}: {error})"
                continue
            if self.row_id in ids:
                return mark, self.ids(mark)[0]
        raise CannotSee(f"no token is known that marks an image in its prompts{why}")


def sample_pictures() -> list[Picture]:
    """Return two small images of noise and of different shapes, always the same ones."""
    generator = np.random.default_rng(0)
    shapes = ((44, 60, 3), (72, 40, 3))
    return [Picture(generator.integers(0, 256, shape, dtype=np.uint8)) for shape in shapes]


def _load(path: Path, described: PreTrainedConfig) -> ProcessorMixin:
    kind = PROCESSOR_MAPPING.get(type(described), None)
    if kind is None:
        raise CannotSee("transformers has no processor for it")
    try:
        with _without_words(kind):
            return cast(ProcessorMixin, _without_videos(kind).from_pretrained(path, **_FILES))
    except CannotSee:
        raise
    except Exception as error:  # what is in the files, or isn't, can lead to anything
        raise CannotSee(f"its processor can't be loaded ({type(error).__name__}: {error})") from error


class _NoVideos:
    """Stands for a processor of videos, which nobody sends: transformers' own need torchvision."""

    model_input_names: tuple[str, ...] = ()


def _without_videos(kind: type[ProcessorMixin]) -> type[ProcessorMixin]:
    """Return a processor's class that is loaded without what it has for videos."""

    def parts(
        cls: type[ProcessorMixin], /, path: Path, described: dict[str, Any] | None = None, **options: Any
    ) -> list[Any]:
        makers: dict[str, Any] = {"image_processor": AutoImageProcessor, "tokenizer": AutoTokenizer}
        images = {**options, "backend": "pil"}  # of the classes that need no torchvision
        return [
            makers[name].from_pretrained(path, **(images if name == "image_processor" else options))
            if name in makers
            else _NoVideos()
            for name in cls.get_attributes()
        ]

    def check(self: ProcessorMixin, name: str, part: Any) -> Any:
        return None if isinstance(part, _NoVideos) else kind.check_argument_for_proper_class(self, name, part)

    members = {
        "_get_arguments_from_pretrained": classmethod(parts),
        "check_argument_for_proper_class": check,
        "__repr__": object.__repr__,  # it is asked for while it is loaded, and would have to write all parts
        "__module__": kind.__module__,
    }
    return type(kind.__name__, (kind,), members)


@contextmanager
def _without_words(kind: type[ProcessorMixin]) -> Iterator[None]:
    """Have a processor made without the package that writes a video's times in words, if that is missing."""
    module = sys.modules.get(kind.__module__)
    if module is None:  # the class only stands for one whose module can't be imported
        raise CannotSee(
            f"transformers' {kind.__name__} needs a package that isn't installed, as torchvision is"
        )
    missing = getattr(module, "num2words", sys) is None
    if missing:
        module.num2words = _NoVideos  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if missing:
            module.num2words = None  # type: ignore[attr-defined]
