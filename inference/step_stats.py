"""What one step of the engine did, as its metrics tell."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Obstacle(StrEnum):
    """What a step had too little of to take all that wait."""

    SEQUENCES = "sequences"  # as many run as ever do at a time
    BUDGET = "budget"  # of tokens to compute
    MEMORY = "memory"  # of the KV cache


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """What one step did, for the metrics."""

    prefill_tokens: int  # prompt tokens computed
    decode_sequences: int
    admitted: int  # sequences taken from the queue by this step
    cached_tokens: int  # prompt tokens of those whose keys and values were found in the prefix cache
    forward_seconds: float
    sample_seconds: float
    waiting: int  # requests in the queue after the step
    running: int
    kv_tokens: int  # tokens held in the KV cache by running sequences
    preempted: int
    held_tokens: int = 0  # that the cache's blocks of running sequences have room for, a shared block's once
    obstacle: Obstacle = Obstacle.BUDGET  # why those that wait do,
    waiting_prefix: int = 0  # but for these, whose prefix another request is just computing
    failed: bool = False  # nothing was computed: it is computed again in parts, or its requests have failed
    schedule_seconds: float = 0.0  # to choose what to compute, new sequences among it
    publish_seconds: float = 0.0  # to give out the tokens, and take out the sequences that ended
    again: bool = False  # it was a part of a step that had failed
    guessed: int = 0  # tokens that were guessed to follow,
    confirmed: int = 0  # and of these, those that did: each text that was guessed at got one more
