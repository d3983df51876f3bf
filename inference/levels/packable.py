"""What of a model can compute a step's sequences as one row of tokens, and why not the rest."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from inference.models.paged import CHUNKED, Probed, use_paged_attention
from inference.models.rotary import is_static
from inference.models.trace import rotations
from inference.planning.described import STATE_TYPES, STATELESS_TYPES
from inference.planning.positions import changing_length
from inference.recurrent.elsewhere import find_elsewhere
from inference.recurrent.layers import StateLayer, find_state_layers
from inference.shortage import is_shortage
from inference.telling import told

LOG = logging.getLogger(__name__)

_LAYER_TYPES = {"full_attention", "sliding_attention", CHUNKED}  # what paged attention can express
_NO_ATTENTION = "it doesn't use transformers' attention interface"


@dataclass(frozen=True, slots=True)
class PackableLayers:
    """A model's modules that are given each sequence's past; neither kind is there if there is a reason."""

    attending: dict[nn.Module, Probed] = field(default_factory=dict)
    keeping: Mapping[nn.Module, StateLayer] = field(default_factory=dict)  # of a state
    reason: str = ""  # why steps can't be packed

    def pasts(self, model: nn.Module) -> list[nn.Module]:
        """Return one of these modules for each decoder layer, in the layers' order."""
        of_layers: dict[str, nn.Module] = {}
        for path, module in model.named_modules():
            if module in self.attending or module in self.keeping:
                of_layers.setdefault(path.rpartition(".")[0], module)
        return list(of_layers.values())


def find_layers(model: PreTrainedModel, positions: int) -> PackableLayers:
    """Switch a model to paged attention and return what of it has a past, for texts of so many positions."""
    reason = _why_not(model.config.get_text_config(), positions)
    if reason:
        return PackableLayers(reason=reason)
    try:
        keeping = find_elsewhere(model) or find_state_layers(model)
    except Exception as error:  # any model's code may fail in any way on what it wasn't written for
        if is_shortage(error):
            raise  # the lower level would be for good, for a moment's want
        reason = f"its layers' states can't be found ({told(error)})"
        return PackableLayers(reason=reason)
    attending, reason = _probe(model, positions)
    reason = reason or _unseen_window(model.config.get_text_config(), attending.values(), positions)
    if reason and not (keeping and reason == _NO_ATTENTION):
        return PackableLayers(reason=reason)
    return PackableLayers(attending, keeping)


def changes_with_others(model: PreTrainedModel, positions: int) -> bool:
    """Return whether positions, of so many, are rotated by what else is in their step."""
    short = changing_length(model.config.get_text_config())
    return (short is not None and positions > short) or _rotates_by_others(model, positions)


def _why_not(text: PreTrainedConfig, positions: int) -> str:
    """Return what of the model paged attention can't do, "" if nothing is known."""
    types = set(getattr(text, "layer_types", None) or ())
    others = types - _LAYER_TYPES - STATELESS_TYPES
    if others - STATE_TYPES:
        return f"its layers of type {', '.join(sorted(others - STATE_TYPES))} have no paged form"
    if getattr(text, "attention_chunk_size", None) and not types:
        return "it isn't known which of its layers have chunked attention"
    short = changing_length(text)
    if short is not None and positions > short:
        # Its rotation changes for all tokens of a step as soon as one of them is past that position.
        return f"its rotary embedding changes at {short} tokens: --max-total-tokens {short} avoids that"
    return ""


def _unseen_window(text: PreTrainedConfig, attending: Collection[Probed], positions: int) -> str:
    """Return what is unknown of a window that a configuration has and no layer asks for, "" if there is none.

    The model's own mask has it then, and none is made for paged attention (PhiMoE).
    """
    window = getattr(text, "sliding_window", None)
    if not isinstance(window, int) or not 0 < window < positions or getattr(text, "layer_types", None):
        return ""
    if any(each.how.window is not None for each in attending):
        return ""
    return f"no layer asks for its sliding window of {window} tokens: --max-total-tokens {window} avoids that"


def _probe(model: PreTrainedModel, positions: int) -> tuple[dict[nn.Module, Probed], str]:
    if _rotates_by_others(model, positions):  # a sequence's keys would be of no use to others, nor to itself
        return {}, "its rotary embedding depends on more than the position"
    try:
        probed = use_paged_attention(model)
    except Exception as error:  # any model's code may fail in any way on attention it wasn't written for
        if is_shortage(error):
            raise
        return {}, f"paged attention can't be used in it ({told(error)})"
    return probed, "" if probed else _NO_ATTENTION


def _rotates_by_others(model: PreTrainedModel, positions: int) -> bool:
    """Return whether a rotary embedding was seen to rotate a position by what else is in its step."""
    try:
        return not all(is_static(rope, positions) for rope in rotations(model))
    except Exception:  # any model's code may fail in any way on calls it wasn't written for
        LOG.debug("A model's rotary embedding can't be looked at", exc_info=True)
        return False
