"""The tokens of sequences that go on together, which a sampler knows from the step before."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from inference.sequences.state import Chunk, Decodes, Sequence, SlotTable, pack  # noqa: E402
from inference.sequences.work import Work  # noqa: E402
from inference.types import Sampling  # noqa: E402
from tests.unit.inference.sampled import GREEDY, choices, sampler, seat, sequence  # noqa: E402

LOGITS = torch.randn(4, 40, generator=torch.Generator().manual_seed(4))
BAD = LOGITS.clone()
BAD[1, 7] = torch.nan


def works(last: Sequence) -> list[Work]:
    """Return three sequences' step, the same beside a row that was held, and beside a prompt."""
    table, decodes = SlotTable(4, 8), Decodes()
    newcomer, waited = sequence(), sequence()
    for each in (sequence(), sequence(), last):
        seat(table, each)
        decodes.add(each)
    seat(table, newcomer)
    waited.held = LOGITS[3]
    alone = pack(table, decodes)
    beside = pack(table, decodes, [Chunk(newcomer, 2, 3)])
    return [Work(alone), Work(alone, resumed=(waited,)), Work(beside)]


@pytest.mark.parametrize("logits", [LOGITS, BAD], ids=["finite", "with a row that is not a number"])
@pytest.mark.parametrize("top", [0, 2])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.5), Sampling(sample=True, seed=3)])
def test_tokens_are_the_same_whatever_step_came_before(sampling: Sampling, top: int, logits: Tensor) -> None:
    first, *others = works(sequence(sampling, top=top))
    by = sampler(LOGITS)
    by.choose(first, -LOGITS[:3])
    for work in (first, *others, first):
        rows = logits[: len(work.pieces.rows)]
        expected = choices(sampler(rows).choose(work, rows), work)
        assert expected == choices(by.choose(work, rows), work)
