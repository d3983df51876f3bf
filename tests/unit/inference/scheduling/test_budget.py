from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling.budget import Budget, Limits
from inference.sequences.sight import ImageRows, Sight
from inference.sequences.state import Sequence
from tests.unit.inference.paper_model import request


def prompts(*lengths: int, logprobs: bool = False) -> list[Sequence]:
    return [
        Sequence(request(str(index), length, 1, prompt_logprobs=logprobs))
        for index, length in enumerate(lengths)
    ]


def sizes(limits: Limits, sequences: list[Sequence], *, used: int = 0, waiting: int = 0) -> list[int]:
    """Return what each sequence gets if all ask in turn."""
    budget = Budget(limits, used, waiting)
    for sequence in sequences:
        budget.take(sequence, sequence.remaining)
    given = {chunk.sequence: chunk.size for chunk in budget.chunks()}
    return [given.get(sequence, 0) for sequence in sequences]


def limits(tokens: int, *, rows: int = 1000, chunked: bool = True, beside: int | None = None) -> Limits:
    return Limits(tokens=tokens, sequences=4, logit_rows=rows, chunked=chunked, beside=beside)


def test_prompts_take_a_small_piece_of_a_step_for_which_texts_wait() -> None:
    assert sizes(limits(400, beside=32), prompts(100), used=1) == [32]
    assert sizes(limits(400, beside=32), prompts(100), used=0) == [100]
    assert sizes(limits(400, beside=32), prompts(100, 10), used=1) == [22, 10]


def test_the_more_texts_go_on_the_more_prompts_may_come() -> None:
    assert sizes(limits(400, beside=32), prompts(100), used=30) == [90]
    assert sizes(limits(40, beside=32), prompts(100), used=30) == [10]


def test_few_texts_wait_for_a_whole_step_of_many_prompts() -> None:
    assert sizes(limits(400, beside=32), prompts(100, 100), used=2, waiting=7) == [32, 0]
    assert sizes(limits(400, beside=32), prompts(100, 100), used=2, waiting=8) == [100, 100]
    assert sizes(limits(150, beside=32), prompts(100, 100), used=2, waiting=8) == [100, 48]


def test_prompts_that_fit_are_computed_whole() -> None:
    assert sizes(limits(40), prompts(20, 10, 10)) == [20, 10, 10]


def test_prompt_that_does_not_fit_leaves_half_to_those_that_do() -> None:
    assert sizes(limits(40), prompts(100, 12, 5)) == [23, 12, 5]
    assert sizes(limits(40), prompts(100, 12, 100, 5)) == [23, 12, 0, 5]


def test_prompt_that_does_not_fit_gets_all_that_nobody_wants() -> None:
    assert sizes(limits(40), prompts(100)) == [40]
    assert sizes(limits(40), prompts(100, 100), used=10) == [30, 0]


def test_short_prompt_that_does_not_fit_shares_the_step_with_a_long_one_before_it() -> None:
    assert sizes(limits(40), prompts(100, 30), used=10) == [15, 15]
    assert sizes(limits(400, beside=16), prompts(16_000, 40, 30), used=1) == [8, 4, 4]
    assert sizes(limits(40), prompts(100, 60, 9)) == [20, 11, 9]
    assert sizes(limits(40), prompts(30, 100), used=20) == [20, 0]


def test_prompts_with_logprobs_share_the_rows() -> None:
    assert sizes(limits(40, rows=8), prompts(6, 6, logprobs=True)) == [6, 2]
    assert sizes(limits(40, rows=8), prompts(100, logprobs=True)) == [8]
    assert sizes(limits(40, rows=37), prompts(100, 60, 30, logprobs=True)) == [20, 10, 7]


def test_whole_prompts_pass_the_budget_only_first() -> None:
    assert sizes(limits(10, chunked=False), prompts(50, 4)) == [50, 0]
    assert sizes(limits(10, chunked=False), prompts(4, 50, 5)) == [4, 0, 5]


def seeing(length: int, *runs: tuple[int, int]) -> Sequence:
    """Return a prompt with images whose tokens see each other."""
    places = np.concatenate([np.arange(*run) for run in runs])
    rows = [ImageRows(torch.zeros(end - first, 4), torch.zeros(end - first, 4), {}) for first, end in runs]
    sight = Sight([b"k"] * len(runs), rows, places, two_way=True)
    return Sequence(request("0", length, 1), sight=sight)


def test_piece_ends_before_an_image_or_behind_it() -> None:
    assert sizes(limits(20), [seeing(100, (10, 40))]) == [10]
    assert sizes(limits(20), [seeing(100, (0, 40))]) == [40]
    assert sizes(limits(20), [seeing(100, (20, 40))]) == [20]
    assert sizes(limits(40), [seeing(100, (10, 40), (41, 60))]) == [40]
    assert sizes(limits(40), [seeing(100, (0, 30)), *prompts(5)]) == [35, 5]
    assert sizes(limits(40), [seeing(100, (22, 60)), *prompts(12)]) == [22, 12]


def test_image_of_which_a_part_is_known_goes_on_only_where_something_is_left() -> None:
    budget = Budget(limits(20), 0)
    (first,), image = prompts(20), seeing(100, (0, 40))
    assert budget.take(first, 20)
    assert not budget.take(image, 100 - 16)


def test_image_that_passes_the_rows_leaves_none_to_others() -> None:
    first, second = (
        replace(each.request, id=str(at), prompt_logprobs=True)
        for at, each in enumerate([seeing(100, (0, 40)), *prompts(50)])
    )
    sequences = [Sequence(first, sight=seeing(100, (0, 40)).sight), Sequence(second)]
    assert sizes(limits(400, rows=8), sequences) == [40, 0]


def test_what_a_cut_leaves_goes_to_another() -> None:
    long, cut = prompts(1000, 300)
    cut.beginning.cuts = {10}
    assert sizes(limits(400), [long, cut]) == [390, 10]


def test_cut_that_came_after_a_prompt_was_let_in_leaves_as_much_to_another() -> None:
    long, cut = prompts(1000, 300)
    budget = Budget(limits(400), 0)
    assert budget.take(long, long.remaining)
    assert budget.take(cut, cut.remaining)
    cut.beginning.cuts = {10}
    assert [chunk.size for chunk in budget.chunks()] == [390, 10]


def test_rows_are_of_those_alone_who_want_logprobs() -> None:
    (scored,), (plain,) = prompts(100, logprobs=True), prompts(60)
    plain.beginning.cuts = {12}
    assert sizes(limits(40, rows=25), [scored, plain]) == [25, 12]


def test_who_gets_nothing_in_a_step_is_told_so() -> None:
    budget = Budget(limits(40), 0)
    first, second, short = prompts(100, 100, 5)
    assert [budget.take(each, each.remaining) for each in (first, second, short)] == [True, False, True]


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=6),
    st.integers(1, 60),
    st.integers(1, 60),
    st.booleans(),
)
def test_budget_is_never_passed_and_never_left_while_someone_wants_it(
    lengths: list[int], tokens: int, rows: int, logprobs: bool
) -> None:
    sequences = prompts(*lengths, logprobs=logprobs)
    given = sizes(limits(tokens, rows=rows), sequences)
    assert sum(given) <= tokens
    assert all(size <= length for size, length in zip(given, lengths, strict=True))
    assert given[0] > 0
    assert sum(given) <= rows if logprobs else sum(given) == min(tokens, sum(lengths))


def test_so_many_whole_prompts_are_computed_while_texts_wait_and_more_where_none_does() -> None:
    few = replace(limits(1000, chunked=False), whole=2)
    assert sizes(few, prompts(10, 10, 10), used=1) == [10, 10, 0]
    assert sizes(few, prompts(*[10] * 9)) == [10] * 8 + [0]
