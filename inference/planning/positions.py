"""How many positions a model has, and where its rotation changes, as its configuration says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedConfig

ENDLESS = 1 << 62  # more positions than any text has

# Families whose first token is at the position behind their padding token's id
_BEHIND_PADDING = frozenset(
    {
        "camembert",
        "data2vec-text",
        "kosmos_2_5_text_model",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)
_GROWING = frozenset({"kosmos_2_5_text_model"})  # whose table of positions is computed, further if need be

_DYNAMIC = (
    "; its dynamic scaling doesn't add to them here, as it would rotate a text by how long others are: "
    "rope_scaling of type yarn or linear does"
)


@dataclass(frozen=True, slots=True)
class Positions:
    """How far a model's texts may reach; None: it has no limit of its own."""

    usual: int | None
    most: int | None  # if that is asked for
    note: str = ""  # why not further

    @property
    def of_both(self) -> Positions:
        """Return the positions of a prompt and a text together that have as many each."""
        return replace(self, usual=self.usual and 2 * self.usual, most=self.most and 2 * self.most)


def positions_of(text: PreTrainedConfig, stated: int | None) -> Positions:
    """Return how far texts may reach; `stated`: the positions that the configuration names.

    YaRN's reach is what it was made for, times its factor, whether or not `stated` was raised to it: the
    recipe of Qwen2.5 leaves it as it was, and Qwen3 states a little more, for the answer. Where twice as much
    or more is stated, that was raised on purpose, and the factor only counts where more is asked for; so it
    does for linear scaling, as there is no telling (Vicuna 16k states what it was before, DeepSeek Coder what
    it is then). The others state their reach. Where layers differ the least counts.
    """
    if not stated or stated <= 0:
        return Positions(None, None)
    if getattr(text, "relative_attention_num_buckets", None):  # T5's kind: what it was trained with
        return Positions(stated, ENDLESS)
    if text.model_type not in _GROWING:
        stated -= first_position(text)
    ropes = _ropes(text)
    usual = max([stated, min((_reach(each, stated) for each in ropes), default=stated)])
    most = max([usual, min((_most(each, stated) for each in ropes), default=usual)])
    dynamic = any(_type(each) == "dynamic" for each in ropes)
    return Positions(usual, most, _DYNAMIC if dynamic else "")


def first_position(text: PreTrainedConfig) -> int:
    """Return the position that a model gives a text's first token: 0, but in RoBERTa's kind (fairseq's)."""
    padding: int | None = getattr(text, "pad_token_id", None)
    return padding + 1 if text.model_type in _BEHIND_PADDING and padding is not None else 0


def changing_length(text: PreTrainedConfig) -> int | None:
    """Return how many tokens LongRoPE rotates as short texts; None: it isn't used. Of more, all change."""
    stated = getattr(text, "original_max_position_embeddings", None)
    stated = stated or getattr(text, "max_position_embeddings", None) or 0
    return min((_original(each, stated) for each in _ropes(text) if _type(each) == "longrope"), default=None)


def _ropes(text: PreTrainedConfig) -> list[Mapping[str, Any]]:
    """Return what is said of rotations: once, or for each type of layer."""
    said = getattr(text, "rope_parameters", None)
    if not isinstance(said, Mapping):
        return []
    nested = [each for each in said.values() if isinstance(each, Mapping)]
    return nested or [said]


def _type(rope: Mapping[str, Any]) -> object:
    return rope.get("rope_type", rope.get("type"))


def _reach(rope: Mapping[str, Any], stated: int) -> int:
    extends = _type(rope) == "yarn" and stated < 2 * _original(rope, stated)
    return _most(rope, stated) if extends else stated


def _most(rope: Mapping[str, Any], stated: int) -> int:
    if _type(rope) == "yarn":
        return int(_original(rope, stated) * _factor(rope))
    return int(stated * _factor(rope)) if _type(rope) == "linear" else stated


def _original(rope: Mapping[str, Any], otherwise: int) -> int:
    original = rope.get("original_max_position_embeddings")
    return original if isinstance(original, int) and original > 0 else otherwise


def _factor(rope: Mapping[str, Any]) -> float:
    factor = rope.get("factor")
    return float(factor) if isinstance(factor, int | float) and factor > 1 else 1.0
