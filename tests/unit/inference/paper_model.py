"""A model on paper: its next token is a checksum of the context that it finds in the cache's slots.

It writes token ids where a real model writes keys and values. A block that two sequences share, a
token computed twice or left out, all change what is read back.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

from inference.blocks import PAGE
from inference.state import Choice, Chosen, Chunk
from inference.types import CoreRequest, LogprobsMode, Sampling

VOCABULARY = 50
EOS = 7


def next_token(context: Several[int]) -> int:
    """Return the token that follows the context."""
    checksum = 1
    for token in context:
        checksum = (checksum * 31 + token + 1) % 1_000_003
    return checksum % VOCABULARY


def whole_text(request: CoreRequest) -> list[int]:
    """Return what the request must generate, computed without any engine."""
    tokens: list[int] = []
    while len(tokens) < request.max_new_tokens and EOS not in tokens:
        tokens.append(next_token([*request.prompt_ids, *tokens]))
    return tokens


def request(id: str, length: int, tokens: int, *, prompt_logprobs: bool = False) -> CoreRequest:
    """Return a request whose prompt differs from that of any other id."""
    return CoreRequest(
        id=id,
        prompt_ids=tuple((int(id) * 13 + position) % VOCABULARY for position in range(length)),
        max_new_tokens=tokens,
        sampling=Sampling(),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=0,
        prompt_logprobs=prompt_logprobs,
    )


class PaperRunner:
    """Keeps token ids in slots, and the sizes of the steps that it was given."""

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}
        self.steps: list[list[int]] = []  # sizes of the chunks of each step
        self.rows: list[int] = []  # logit rows of each step

    def run(self, chunks: Several[Chunk]) -> list[int | None]:
        """Return the next token of each chunk that samples."""
        self.steps.append([chunk.size for chunk in chunks])
        self.rows.append(sum(chunk.logit_rows for chunk in chunks))
        for chunk in chunks:
            for position in range(chunk.start, chunk.stop):
                self.slots[_slot(chunk, position)] = int(chunk.sequence.ids[position])
        return [self._next(chunk) if chunk.samples else None for chunk in chunks]

    def _next(self, chunk: Chunk) -> int:
        return next_token([self.slots[_slot(chunk, position)] for position in range(chunk.stop)])


class PaperSampler:
    """Takes the runner's tokens as they are."""

    def choose(self, chunks: Several[Chunk], logits: list[int | None]) -> list[Chosen]:
        """Return each chunk's token; a prompt token's log-probability is minus its position."""
        return [
            Chosen(_prompt_logprobs(chunk), None if token is None else Choice(token, -0.5))
            for chunk, token in zip(chunks, logits, strict=True)
        ]


def _prompt_logprobs(chunk: Chunk) -> tuple[float, ...]:
    if not chunk.sequence.wants_prompt_logprobs:
        return ()
    last = chunk.sequence.prompt_length - 1
    return tuple(-float(position) for position in range(chunk.start + 1, min(chunk.stop, last) + 1))


def _slot(chunk: Chunk, position: int) -> int:
    return chunk.sequence.blocks[position // PAGE] * PAGE + position % PAGE
