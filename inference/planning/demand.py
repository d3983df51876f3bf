"""What a model needs of the machine, as its files say, and later the model itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inference.errors import ModelUnavailable
from inference.machine import Machine
from inference.telling import counted

MIB = 1024 * 1024
GIB = 1024 * MIB
TOKEN_BYTES = 64  # that a token takes in any case, in the engine's books
_LONGEST = 1 << 20  # tokens of a text where the model has no limit of its own
_LONGEST_WHOLE = 4096  # the same where prompts are read at once: all others wait as long as one takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What the model needs, as its files say."""

    weights_bytes: int
    parameters: int  # that a token of a prompt is multiplied with
    kv_bytes: int  # of one token, all layers; TOKEN_BYTES at least
    state_bytes: int = 0  # of layers that keep a state of a text; known once the model is loaded
    max_positions: int | None  # None: no limit of its own
    most_positions: int | None = None  # that may be asked for; None: not more than these
    part_positions: int | None = None  # of a prompt and of a text each, behind an encoder: half of these
    most_part: int | None = None  # of either that may be asked for; None: not more than all
    positions_note: str = ""  # why not more, for the end of a sentence that says how many
    weights_form: str = "float32"  # of its linears
    loading_bytes: int = 0  # that weights take while they are loaded, if that is known to be more
    loading_how: str = ""  # what they are then, for a sentence
    product_speed: float = 1.0  # of its linears' products, beside float32's on the same machine
    step_token_bytes: int = 0  # of each token that a step computes, while its experts do
    step_bytes: int = 0  # of all of them; known once a step's size is
    whole: bool = False  # it reads a prompt at once, and nothing of one is of use to another
    pair_bytes: int = 0  # of each two tokens of a prompt, while one layer's attention looks at them at once

    @property
    def longest(self) -> int:
        """Return how many tokens a text has at most where the model has no limit of its own."""
        return _LONGEST_WHOLE if self.whole else _LONGEST

    def longest_prompt(self, max_total: int, room: int) -> int:
        """Return how many tokens a prompt has at most that is read at once, in `room` bytes."""
        part = self.part_positions or max_total
        if max_total > 2 * part:  # for which the model wasn't made, and which was asked for
            part = self.most_part or max_total
        return min(part, self.longest_at_once(room))

    def longest_text(self, begun: int) -> int | None:
        """Return how many tokens the decoder makes at most of `begun`; None: as many as a prompt leaves."""
        return None if self.most_part is None else max(self.most_part - begun + 1, 1)

    def longest_at_once(self, room: int) -> int:
        """Return how many tokens a prompt has at most that is read at once, in `room` bytes; one at least."""
        return max(math.isqrt(room // self.pair_bytes), 1) if self.pair_bytes and room > 0 else self.longest


def check_whole(asked: int, step: int | None, demand: Demand) -> None:
    """Raise ModelUnavailable where prompts of `asked` tokens can't be read at once, in steps of `step`."""
    if demand.most_part and asked > demand.most_part:
        raise ModelUnavailable(
            f"`max_input_tokens` must be <= {demand.most_part}, the positions that the model's encoder "
            f"knows. Given: {asked}; lower --max-input-tokens, or leave it out"
        )
    if step and asked > step:
        raise ModelUnavailable(
            f"`max_batch_prefill_tokens` must be >= `max_input_tokens`, as this model reads prompts at once. "
            f"Given: {step} and {asked}; lower --max-input-tokens, or raise --max-batch-prefill-tokens"
        )


def too_little(demand: Demand, machine: Machine, sequences: int, states: int) -> ModelUnavailable:
    """Return the refusal of a model that leaves no room for keys and values."""
    return ModelUnavailable(
        f"Not enough memory: {machine.free_bytes / MIB:,.0f} MiB are free, the weights take "
        f"{demand.weights_bytes / MIB:,.0f} MiB{_step_said(demand)}{states_said(sequences, states)}; "
        "use a smaller model or --dtype, or a bigger machine"
    )


def states_said(sequences: int, states: int) -> str:
    """Return what states take, for the middle of a sentence; "" if they take nothing."""
    if not states:
        return ""
    said = f"{counted(sequences, 'sequence')} {states / MIB:,.0f} MiB"
    return f", the states of {said} (--max-batch-size makes these fewer)"


def _step_said(demand: Demand) -> str:
    if not demand.step_bytes:
        return ""
    return (
        f", what a step's experts compute {demand.step_bytes / MIB:,.0f} MiB (--max-batch-prefill-tokens "
        "makes it less)"
    )
