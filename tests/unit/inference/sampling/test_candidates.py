from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from inference.sampling.candidates import Candidates, Filters, best, filtered  # noqa: E402
from inference.sequences.state import Integers  # noqa: E402

V = 700


def scores_of(rows: int, *, seed: int = 0, scale: float = 2.0, levels: int = 0, columns: int = V) -> Tensor:
    """Return random scores; with `levels`, of few different values, so that there are ties."""
    scores = scale * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    return (scores * levels).round() / levels if levels else scores


def filters(
    rows: int, *, top_k: int = 0, top_p: float = inf, min_p: float = 0.0, typical_p: float = inf
) -> Filters:
    return Filters(np.full(rows, top_k), np.full(rows, top_p), np.full(rows, min_p), np.full(rows, typical_p))


def reference(scores: Tensor, top_k: int, top_p: float, min_p: float, typical_p: float) -> set[int]:
    """Return the tokens of one row that the filters leave, by sorting all of them."""
    row = scores.double()
    if top_k:
        row = row.masked_fill(row < row.sort(descending=True).values[min(top_k, len(row)) - 1], -inf)
    order = row.sort(descending=True, stable=True).indices
    mass = row.softmax(0)[order].cumsum(0)
    row[order[1:][mass[:-1] >= top_p]] = -inf
    row = row.masked_fill(row < row.max() + torch.tensor(min_p, dtype=torch.float64).log(), -inf)
    logprobs = row.log_softmax(0)
    entropy = -(logprobs.exp() * logprobs).nansum()
    order = (-logprobs - entropy).abs().sort(stable=True).indices
    mass = logprobs.exp()[order].cumsum(0)
    row[order[1:][mass[:-1] >= typical_p]] = -inf
    return set(row.isfinite().nonzero().flatten().tolist())


@given(st.integers(0, 50), st.lists(st.integers(1, 900), min_size=1, max_size=4), st.sampled_from([0, 3]))
def test_best_are_all_that_score_as_much_as_the_last_of_them(
    seed: int, counts: list[int], levels: int
) -> None:
    scores = scores_of(len(counts), seed=seed, levels=levels)
    found = best(scores, np.array(counts))
    for row, (ids, values, count) in enumerate(zip(found.ids, found.scores, counts, strict=True)):
        there = np.isfinite(values)
        assert there.sum() >= min(count, V)
        assert scores[row, ids[there]].tolist() == values[there].tolist()
        lowest = values[there].min()
        assert there.sum() == int((scores[row].double() >= lowest).sum())
        pairs = list(zip(-values[there], ids[there], strict=True))
        assert pairs == sorted(pairs)


@settings(deadline=None)
@given(
    seed=st.integers(0, 1000),
    top_k=st.sampled_from([0, 0, 1, 7, 300, 2000]),
    top_p=st.sampled_from([inf, 0.1, 0.9, 0.9999]),
    min_p=st.sampled_from([0.0, 0.05, 0.7]),
    typical_p=st.sampled_from([inf, inf, 0.3, 0.95]),
    scale=st.sampled_from([0.01, 1.0, 8.0]),
)
def test_filters_leave_what_sorting_everything_leaves(
    seed: int, top_k: int, top_p: float, min_p: float, typical_p: float, scale: float
) -> None:
    scores = scores_of(2, seed=seed, scale=scale)
    wanted = filters(2, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p)
    if not wanted.any.all():
        return
    left = filtered(scores, wanted)
    for row in range(2):
        expected = reference(scores[row], top_k, top_p, min_p, typical_p)
        found = set(left.ids[row][np.isfinite(left.scores[row])].tolist())
        assert len(found ^ expected) <= 1  # where float32 and float64 place an edge


def test_a_row_of_which_all_tokens_were_looked_at_is_looked_at_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[int]] = []

    def looks(scores: Tensor, counts: Integers) -> Candidates:
        asked.append(counts.tolist())
        return best(scores, counts)

    monkeypatch.setattr("inference.sampling.candidates.best", looks)
    left = filtered(scores_of(1, columns=6400, scale=0.1), filters(1, min_p=1e-30))
    assert np.isfinite(left.scores).sum() == 6400
    assert asked == [[64], [512]]  # and there are 100 blocks of 64


def test_rows_are_filtered_as_if_alone() -> None:
    scores = scores_of(6, columns=5000, scale=1.0)
    each = Filters(
        np.array([0, 5, 0, 0, 80, 0]),
        np.array([0.95, inf, 0.3, inf, 0.9, inf]),
        np.array([0.0, 0.0, 0.1, 0.2, 0.0, 0.0]),
        np.array([inf, inf, inf, 0.8, 0.9, 0.7]),
    )
    together = filtered(scores, each)
    noise = np.linspace(0.0, 0.99, 6)
    drawn = together.draw(noise)
    for row in range(6):
        alone = filtered(scores[row : row + 1], each.of(np.array([row])))
        assert [part[0] for part in alone.draw(noise[row : row + 1])] == [part[row] for part in drawn]
        assert alone.totals()[0] == together.totals()[row]
        assert [part[0] for part in alone.first()] == [part[row] for part in together.first()]


def test_draw_is_the_first_token_by_id_whose_mass_passes_the_noise() -> None:
    left = filtered(torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log(), filters(1, top_k=3))
    noise = [(0.0, 1), (0.22, 1), (0.23, 2), (0.55, 2), (0.56, 3), (0.999, 3)]
    assert [int(left.draw(np.array([at]))[0][0]) for at, _ in noise] == [token for _, token in noise]


@given(st.integers(0, 1000), st.sampled_from([0.2, 0.6, 0.95]))
def test_what_was_removed_decides_nothing_about_what_is_typical(seed: int, typical_p: float) -> None:
    scores, spread = scores_of(1, seed=seed, columns=40), torch.full((1, 200), -inf)
    spread[:, ::5] = scores
    left, alone = (filtered(each, filters(1, typical_p=typical_p)) for each in (spread, scores))
    assert left.ids[np.isfinite(left.scores)].tolist() == (5 * alone.ids[np.isfinite(alone.scores)]).tolist()


@pytest.mark.parametrize(
    "wanted", [filters(2, top_p=0.5), filters(2, typical_p=0.5)], ids=["top-p", "typical"]
)
@pytest.mark.parametrize("row", [[torch.nan] * 3, [inf, 0.0, 0.0], [-inf] * 3])
def test_rows_without_a_choice_disturb_nobody(row: list[float], wanted: Filters) -> None:
    scores = torch.tensor([row, [1.0, 0.0, 2.0]])
    left = filtered(scores, wanted)
    assert left.draw(np.array([0.5, 0.5]))[0][1] == 2
    assert left.totals()[1] == pytest.approx(2.0)
