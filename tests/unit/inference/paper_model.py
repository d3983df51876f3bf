"""A model on paper: its next token is picked by a checksum of the context that it finds in the cache's slots.

It writes token ids where a real model writes keys and values. A block that two sequences share, a
token computed twice or left out, all change what is read back.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Several

from inference.blocks import PAGE
from inference.state import Choice, Chosen, Chunk, Sequence, Work
from inference.types import CoreRequest, LogprobsMode, Sampling
from tests.unit.inference.paper_grammar import PaperGrammar, allowed

VOCABULARY = 50
EOS = 7


def checksum(context: Several[int]) -> int:
    """Return what the token that follows the context depends on."""
    value = 1
    for token in context:
        value = (value * 31 + token + 1) % 1_000_003
    return value


def pick(value: int, among: Collection[int], *, hides_eos: bool) -> int:
    """Return the token that a checksum picks."""
    left = sorted(set(among) - {EOS} if hides_eos else among) or [EOS]
    return left[value % len(left)]


def whole_text(request: CoreRequest) -> list[int]:
    """Return what the request must generate, computed without any engine."""
    tokens: list[int] = []
    grammar = request.grammar
    assert grammar is None or isinstance(grammar, PaperGrammar)
    while len(tokens) < request.max_new_tokens:
        among = range(VOCABULARY) if grammar is None else grammar.rule(tuple(tokens))
        hides_eos = len(tokens) < request.min_new_tokens or (request.ignore_eos and grammar is not None)
        tokens.append(pick(checksum([*request.prompt_ids, *tokens]), among, hides_eos=hides_eos))
        if tokens[-1] == EOS and (grammar is not None or not request.ignore_eos):
            break
    return tokens


def request(
    id: str,
    length: int,
    tokens: int,
    *,
    prompt_logprobs: bool = False,
    top: int = 0,
    grammar: PaperGrammar | None = None,
    min_tokens: int = 0,
    ignore_eos: bool = False,
) -> CoreRequest:
    """Return a request whose prompt differs from that of any other id."""
    return CoreRequest(
        id=id,
        prompt_ids=tuple((int(id) * 13 + position) % VOCABULARY for position in range(length)),
        max_new_tokens=tokens,
        min_new_tokens=min_tokens,
        ignore_eos=ignore_eos,
        sampling=Sampling(),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=top,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar,
    )


class PaperRunner:
    """Keeps token ids in slots, and the sizes of the steps that it was given."""

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}
        self.steps: list[list[int]] = []  # sizes of the chunks of each step
        self.rows: list[int] = []  # logit rows of each step

    def run(self, chunks: Several[Chunk]) -> list[int | None]:
        """Return the checksum of each chunk that samples."""
        self.steps.append([chunk.size for chunk in chunks])
        self.rows.append(sum(chunk.logit_rows for chunk in chunks))
        for chunk in chunks:
            for position in range(chunk.start, chunk.stop):
                self.slots[_slot(chunk, position)] = int(chunk.sequence.ids[position])
        return [self._next(chunk) if chunk.samples else None for chunk in chunks]

    def _next(self, chunk: Chunk) -> int:
        return checksum([self.slots[_slot(chunk, position)] for position in range(chunk.stop)])


class PaperSampler:
    """Picks tokens by the runner's checksums, among those that the sequence may choose."""

    def choose(self, work: Work, logits: list[int | None] | None) -> list[Chosen]:
        """Return each sequence's token; a prompt token's log-probability is minus its position."""
        results = []
        for chunk, value in zip(work.chunks, logits or [], strict=True):
            late = chunk.sequence in work.late
            if late:
                chunk.sequence.held = value
            choice = None if late or value is None else _choice(chunk.sequence, value)
            logprobs = _prompt_logprobs(chunk)
            top = (
                tuple(((int(-each), each),) for each in logprobs)
                if chunk.sequence.request.top_n_tokens
                else ()
            )
            results.append(Chosen(logprobs, top, choice))
        return results + [Chosen(choice=_choice(each, each.held)) for each in work.resumed]


def _choice(sequence: Sequence, value: object) -> Choice:
    assert isinstance(value, int)
    among = range(VOCABULARY) if sequence.guide is None else allowed(sequence.guide.mask)
    return Choice(pick(value, among, hides_eos=sequence.hides_eos), -0.5)


def _prompt_logprobs(chunk: Chunk) -> tuple[float, ...]:
    if not chunk.sequence.wants_prompt_logprobs:
        return ()
    last = chunk.sequence.prompt_length - 1
    return tuple(-float(position) for position in range(chunk.start + 1, min(chunk.stop, last) + 1))


def _slot(chunk: Chunk, position: int) -> int:
    return chunk.sequence.blocks[position // PAGE] * PAGE + position % PAGE
