"""Sequences as a sampler sees them, and what it says of them in a form that tests compare."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from inference.grammar.masks import Endings, Guide
from inference.prompt_tops import TopTokens
from inference.sampling.sampler import TorchSampler
from inference.sequences.chosen import Chosen
from inference.sequences.state import Chunk, Decodes, Pieces, Sequence, SlotTable, pack
from inference.sequences.work import Work
from inference.types import CoreRequest, LogprobsMode, Sampling

GREEDY = Sampling()
PROCESSED = LogprobsMode.PROCESSED
RAW = LogprobsMode.RAW
EOS = 0


def sequence(
    sampling: Sampling = GREEDY,
    *,
    mode: LogprobsMode = PROCESSED,
    top: int = 0,
    prompt: tuple[int, ...] = (1, 2, 3),
    prompt_logprobs: bool = False,
    min_tokens: int = 0,
    guide: Guide | None = None,
) -> Sequence:
    return Sequence(
        CoreRequest(
            id="",
            prompt_ids=prompt,
            max_new_tokens=100,
            min_new_tokens=min_tokens,
            sampling=sampling,
            logprobs=mode,
            top_n_tokens=top,
            prompt_logprobs=prompt_logprobs,
            prompt_top_n_tokens=top if prompt_logprobs else 0,
        ),
        guide,
    )


@dataclass(frozen=True)
class Choice:
    """What a step says of one sequence."""

    token_id: int
    logprob: float
    top: TopTokens


def pieces_of(*chunks: Chunk) -> Pieces:
    """Return chunks as a step's pieces."""
    table = SlotTable(len(chunks) or 1, 8)
    for chunk in chunks:
        seat(table, chunk.sequence)
    return pack(table, Decodes(), chunks)


def seat(table: SlotTable, sequence: Sequence) -> None:
    """Move a sequence into a slot of the table, from wherever it is."""
    if sequence.slot >= 0:
        sequence.leave()
    table.enter(sequence)


def run(logits: Tensor, *chunks: Chunk, late: tuple[Sequence, ...] = ()) -> Chosen:
    return sampler(logits).choose(Work(pieces_of(*chunks), frozenset(late)), logits)


def choose(logits: Tensor, *sequences: Sequence) -> list[Choice | str]:
    """Return each sequence's choice, or why there is none."""
    work = Work(pieces_of(*(Chunk(each, 0, each.length) for each in sequences)))
    return choices(sampler(logits).choose(work, logits), work)


def choices(chosen: Chosen, work: Work) -> list[Choice | str]:
    tops = chosen.top or [()] * len(work.sequences)
    rows = zip(work.sequences, chosen.tokens.tolist(), chosen.logprobs, tops, strict=True)
    return [chosen.failures.get(sequence, Choice(*row)) for sequence, *row in rows]


def append(sequence: Sequence, token: int) -> None:
    """Add a generated token to a sequence."""
    table = SlotTable(1, 8)
    seat(table, sequence)
    table.append(np.array([sequence.slot]), np.array([token]))


def sampler(logits: Tensor) -> TorchSampler:
    return TorchSampler(Endings(logits.shape[1], (EOS,)))


def choice(logits: list[float], of: Sequence) -> Choice:
    (chosen,) = choose(torch.tensor([logits]), of)
    assert isinstance(chosen, Choice)
    return chosen
