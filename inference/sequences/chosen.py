"""What a step's logits were made into."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass, field

from inference.prompt_tops import PromptTops, TopTokens
from inference.sequences.state import Integers, Sequence


@dataclass(frozen=True, slots=True)
class Scored:
    """What a chunk's logits say of its prompt."""

    logprobs: tuple[float, ...]  # of the prompt tokens start + 1 .. stop
    top: PromptTops | None = None  # the likeliest at their places, if asked for


@dataclass(frozen=True, slots=True)
class Chosen:
    """All that a step's logits say; a column's rows are those of `Work.sequences`."""

    tokens: Integers  # (n,)
    logprobs: list[float]  # n of them
    top: Several[TopTokens] | None = None  # n of them; None: nobody asked
    prompts: dict[Sequence, Scored] = field(default_factory=dict)  # of those that asked
    failures: dict[Sequence, str] = field(default_factory=dict)  # why there can't be a token
