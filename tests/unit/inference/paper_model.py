"""A model on paper: its next token is picked by a checksum of the context that it finds in the cache's slots.

It writes token ids where a real model writes keys and values. A block that two sequences share, a
token computed twice or left out, all change what is read back.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Several
from itertools import islice

import numpy as np

from inference.engine.speculation import Speculation
from inference.kv_cache.blocks import PAGE, BlockPool
from inference.prompt_tops import PromptTops
from inference.scheduling.scheduler import Limits, Scheduler
from inference.sequences.chosen import Chosen, Scored
from inference.sequences.state import Chunk, Integers, Pieces, Sequence, SlotTable
from inference.sequences.work import Work
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
    prefix: int = 0,
    owner: str = "",
    salt: str = "",
    adapter: int = -1,
) -> CoreRequest:
    """Return a request; behind the `prefix` tokens that all have, its prompt differs from any other id's."""
    return CoreRequest(
        id=id,
        prompt_ids=tuple(
            (3 * position if position < prefix else int(id) * 13 + position) % VOCABULARY
            for position in range(length)
        ),
        owner=owner,
        salt=salt,
        adapter=adapter,
        max_new_tokens=tokens,
        min_new_tokens=min_tokens,
        ignore_eos=ignore_eos,
        sampling=Sampling(),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=top,
        prompt_logprobs=prompt_logprobs,
        prompt_top_n_tokens=top if prompt_logprobs else 0,
        grammar=grammar,
    )


def make_scheduler(blocks: int, limits: Limits, *, prefix_caching: bool = True) -> Scheduler:
    """Return a scheduler of sequences that may take up the whole cache."""
    table = SlotTable(limits.sequences, blocks)
    return Scheduler(BlockPool(blocks), limits, table, prefix_caching=prefix_caching)


class PaperRunner:
    """Keeps token ids in slots, and the sizes of the steps that it was given."""

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}
        self.steps: list[list[int]] = []  # sizes of the pieces of each step
        self.rows: list[int] = []  # logit rows of each step

    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> list[int]:
        """Return the checksum of what each token that wants logits follows from, itself included."""
        sizes = pieces.stops - pieces.starts
        self.steps.append(sizes.tolist())
        self.rows.append(len(pieces.rows))
        slots = np.repeat(pieces.slots, sizes)
        places = homes(pieces.table, slots, pieces.positions)
        for home, token in zip(places.tolist(), pieces.ids.tolist(), strict=True):
            self.slots[home] = token
        return [
            self._checksum(pieces.table, slots[row], int(pieces.positions[row]) + 1)
            for row in pieces.rows.tolist()
        ]

    def _checksum(self, table: SlotTable, slot: int, length: int) -> int:
        places = homes(table, np.full(length, slot), np.arange(length))
        return checksum([self.slots[home] for home in places.tolist()])


class PaperSampler:
    """Picks tokens by the runner's checksums, among those that the sequence may choose."""

    def tokens_only(self, pieces: Pieces) -> bool:
        """Return no: it reads all that the runner gives."""
        return False

    def choose(self, work: Work, logits: list[int] | None) -> Chosen:
        """Return each sequence's token; a prompt token's log-probability is minus its position."""
        values: dict[Sequence, object] = {sequence: sequence.held for sequence in work.resumed}
        rest = iter(logits or [])
        for chunk in work.pieces.chunks:
            for value in islice(rest, chunk.logit_rows):  # the last one counts
                values[chunk.sequence] = value
        for sequence in work.late:
            sequence.held = values[sequence]
        assert next(rest, None) is None
        tokens = [_pick(sequence, values[sequence]) for sequence in work.sequences]
        prompts = {
            chunk.sequence: _score(chunk)
            for chunk in work.pieces.prompts
            if chunk.sequence.wants_prompt_logprobs
        }
        return Chosen(np.array(tokens, dtype=np.int64), [-0.5] * len(tokens), None, prompts)

    def choose_rows(self, sequences: tuple[Sequence, ...], logits: list[int], rows: Integers) -> Chosen:
        """Return the tokens that some rows say."""
        tokens = [_pick(each, logits[row]) for each, row in zip(sequences, rows.tolist(), strict=True)]
        return Chosen(np.array(tokens, dtype=np.int64), [-0.5] * len(tokens))

    def select(self, logits: list[int], rows: Integers) -> list[int]:
        """Return some of the rows."""
        return [logits[row] for row in rows.tolist()]


class Prophet(Speculation[list[int]]):
    """Knows what each text will be, but for every so manieth guess at it."""

    def __init__(
        self, scheduler: Scheduler, sampler: PaperSampler, most: int, tokens: int, errs: int
    ) -> None:
        super().__init__(scheduler, sampler, most, tokens)
        self._errs = errs  # 0: never
        self._made = 0

    def _guess(self, sequence: Sequence, most: int) -> Integers:
        guess = whole_text(sequence.request)[sequence.generated :][:most]
        for at in range(len(guess)):
            self._made += 1
            if self._errs and self._made % self._errs == 0:
                guess[at] = (guess[at] + 1) % VOCABULARY
        return np.array(guess, dtype=np.int64)


def _pick(sequence: Sequence, value: object) -> int:
    assert isinstance(value, int)
    among = range(VOCABULARY) if sequence.guide is None else allowed(sequence.guide.mask)
    return pick(value, among, hides_eos=sequence.hides_eos)


def _score(chunk: Chunk) -> Scored:
    last = chunk.sequence.prompt_length - 1
    logprobs = tuple(-float(position) for position in range(chunk.start + 1, min(chunk.stop, last) + 1))
    wanted = chunk.sequence.request.prompt_top_n_tokens
    return Scored(logprobs, PromptTops.of(((int(-each), each),) for each in logprobs) if wanted else None)


def kept(runner: PaperRunner, sequence: Sequence) -> list[int]:
    """Return what the cache holds of all that counts as computed."""
    places = np.arange(sequence.computed)
    blocks = np.array(sequence.blocks, dtype=np.int64)[places // PAGE] if len(places) else places
    return [runner.slots[home] for home in (blocks * PAGE + places % PAGE).tolist()]


def homes(table: SlotTable, slots: Integers, positions: Integers) -> Integers:
    """Return where the cache keeps what is at each position of the sequence in each slot."""
    return table.blocks[slots, positions // PAGE].astype(np.int64) * PAGE + positions % PAGE
