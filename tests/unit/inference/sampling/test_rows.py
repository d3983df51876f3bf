from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from inference.sampling.rows import block_sums, draw, softmax, statistics  # noqa: E402


@pytest.fixture(autouse=True)
def _two_threads() -> None:
    """Let torch split a long row among threads, if it will."""
    torch.set_num_threads(2)


def test_statistics_are_the_best_token_and_the_mass() -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0, 0.0], [2.0, 1.0, 0.0, -torch.inf]])
    found = statistics(scores)
    assert found.tokens.tolist() == [1, 0]
    assert found.best.tolist() == [3.0, 2.0]
    assert found.totals.tolist() == pytest.approx(scores.logsumexp(1).tolist())


@pytest.mark.parametrize("columns", [97, 50257])
def test_rows_give_the_same_bits_alone_and_in_company(columns: int) -> None:
    scores = 3 * torch.randn(7, columns, generator=torch.Generator().manual_seed(1))
    noise = np.linspace(0.0, 0.999, 7)
    together = (statistics(scores), *draw(scores, noise))
    for row in range(7):
        one = scores[row : row + 1].clone()
        alone = (statistics(one), *draw(one, noise[row : row + 1]))
        assert alone[0].totals[0] == together[0].totals[row]
        assert [alone[1][0], alone[2][0]] == [together[1][row], together[2][row]]


@pytest.mark.parametrize("columns", [5, 8, 50257])
def test_a_gpu_is_given_rows_that_begin_at_whole_lines(columns: int) -> None:
    given: list[tuple[int, ...]] = []

    class OnGpu(Tensor):
        device = torch.device("cuda", 0)

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (torch.softmax, torch.log_softmax):
                given.append(tuple(args[0].shape))
            return super().__torch_function__(func, types, args, kwargs or {})

    scores = 3 * torch.randn(3, columns, generator=torch.Generator().manual_seed(1))
    on_gpu = scores.as_subclass(OnGpu)
    assert softmax(on_gpu).tolist() == pytest.approx(scores.softmax(1).numpy())
    assert softmax(on_gpu, logs=True).tolist() == pytest.approx(scores.log_softmax(1).numpy())
    assert given == [(3, columns + -columns % 8)] * 2


@pytest.mark.parametrize("columns", [1, 40, 64, 65, 700])
def test_draw_is_the_first_token_whose_cumulative_mass_passes_the_noise(columns: int) -> None:
    scores = torch.randn(1, columns, generator=torch.Generator().manual_seed(2)).repeat(200, 1)
    noise = (np.arange(200) + 0.5) / 200
    tokens, totals = draw(scores, noise)
    edges = scores[0].double().softmax(0).cumsum(0).numpy()
    expected = np.minimum(np.searchsorted(edges, noise, side="right"), columns - 1)
    assert (tokens != expected).sum() <= 1  # where float32 places an edge
    assert totals[0] == pytest.approx(float(scores[0].double().logsumexp(0)), abs=1e-5)


def test_draw_never_takes_what_has_no_mass() -> None:
    scores = torch.full((2, 200), -torch.inf)
    scores[:, [70, 130]] = 0.0
    tokens, _ = draw(scores, np.array([0.0, 1 - 2.0**-48]))
    assert tokens.tolist() == [70, 130]


def test_sums_of_blocks_are_those_of_the_columns() -> None:
    values = torch.arange(300.0).view(2, 150)
    sums = [[float(row[at : at + 64].sum()) for at in (0, 64, 128)] for row in values]
    assert block_sums(values).tolist() == sums
