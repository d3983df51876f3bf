from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from inference.grammar.masks import Endings  # noqa: E402
from inference.kernels.native import Library, open_library  # noqa: E402
from inference.sampling.sampler import TorchSampler  # noqa: E402
from inference.sequences.state import Chunk, Sequence  # noqa: E402
from inference.sequences.work import Work  # noqa: E402
from inference.types import LogprobsMode, Sampling  # noqa: E402
from tests.unit.inference.sampled import EOS, Choice, append, choices, pieces_of, sequence  # noqa: E402

SAMPLINGS = st.builds(
    Sampling,
    sample=st.booleans(),
    temperature=st.sampled_from([1.0, 0.7, 2.0]),
    top_k=st.sampled_from([0, 0, 5, 100]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.3]),
    min_p=st.sampled_from([0.0, 0.0, 0.1]),
    typical_p=st.sampled_from([1.0, 1.0, 0.8]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.2]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5]),
    seed=st.integers(0, 99),
)
REQUESTS = st.builds(
    sequence,
    SAMPLINGS,
    mode=st.sampled_from(LogprobsMode),
    top=st.sampled_from([0, 0, 3]),
    min_tokens=st.sampled_from([0, 0, 2]),
)


@pytest.mark.parametrize("library", [None, open_library(2)], ids=["torch", "native"])
@settings(deadline=None, max_examples=12)
@given(rows=st.lists(REQUESTS, min_size=2, max_size=5), seed=st.integers(0, 9))
def test_any_row_has_the_same_bits_alone_in_any_batch_and_in_any_order(
    library: Library | None, rows: list[Sequence], seed: int
) -> None:
    torch.set_num_threads(2)  # a sum over one row would be split among them
    logits = 8 * torch.randn(len(rows), 33_000, generator=torch.Generator().manual_seed(seed))
    for row in rows:
        append(row, 17)
    found = [
        told(TorchSampler(Endings(33_000, (EOS,)), library), part, own)
        for part, own in [(logits, rows), (logits.flip(0), rows[::-1])]
    ]
    alone = [
        told(TorchSampler(Endings(33_000, (EOS,)), library), logits[at : at + 1].clone(), [row])[0]
        for at, row in enumerate(rows)
    ]
    assert found[0] == found[1][::-1] == alone


def told(by: TorchSampler, logits: Tensor, sequences: list[Sequence]) -> list[Choice | str]:
    work = Work(pieces_of(*(Chunk(each, 0, each.length) for each in sequences)))
    return choices(by.choose(work, logits), work)
