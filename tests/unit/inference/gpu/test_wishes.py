"""What a device is told of filters and penalties, and how it keeps count of what it chooses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.gpu import packing
from inference.gpu import wishes as module
from inference.gpu.slots import DeviceState
from inference.gpu.wishes import IN_PROMPT, Wish, marks_of, row_of
from inference.sampling.recipe import MOST_COUNTED, drawn_by_device
from inference.sequences.state import Sequence
from inference.types import CoreRequest, LogprobsMode, Sampling, Watermark
from tests.unit.inference.gpu.small_device import no_room_to_send
from tests.unit.inference.gpu.wished import PROMPT, Asked, Rows

PENALISED = Sampling(sample=True, repetition_penalty=1.5)
V = 60


def request(sampling: Sampling, *, tokens: int = 5, top: int = 0, least: int = 0) -> CoreRequest:
    return CoreRequest(
        id="",
        prompt_ids=(1,),
        max_new_tokens=tokens,
        min_new_tokens=least,
        sampling=sampling,
        logprobs=LogprobsMode.RAW,
        top_n_tokens=top,
        prompt_logprobs=False,
    )


def rows(*samplings: Sampling, ids: tuple[int, ...] = tuple(range(PROMPT))) -> Rows:
    return Rows([Asked(sampling=each, ids=ids) for each in samplings], torch.zeros(len(samplings), V))


def marks(of: Rows, row: int = 0) -> list[int]:
    assert of.state.wishes is not None
    return of.state.wishes.marks[of.sequences[row].slot, :V].tolist()


@pytest.mark.parametrize(
    ("wanted", "known"),
    [
        (request(Sampling()), True),
        (request(Sampling(sample=True, top_k=3, top_p=0.5, min_p=0.1, temperature=0.7)), True),
        (request(Sampling(repetition_penalty=1.1, frequency_penalty=0.1, presence_penalty=-1.0)), True),
        (request(Sampling(frequency_penalty=0.1), tokens=MOST_COUNTED + 1), False),
        (request(Sampling(repetition_penalty=1.1), tokens=MOST_COUNTED + 1), True),
        (request(Sampling(sample=True, typical_p=0.5)), False),
        (request(Sampling(sample=True, top_k=3, logit_bias=((1, 2.0),))), False),
        (request(Sampling(sample=True, top_k=3, watermark=Watermark())), False),
        (request(Sampling(top_k=3, temperature=0.5)), False),
        (request(Sampling(top_k=3), top=2), False),
        (request(Sampling(top_k=3), least=2), False),
    ],
)
def test_host_chooses_for_what_a_device_does_not_know(wanted: CoreRequest, *, known: bool) -> None:
    assert drawn_by_device(wanted, shapes=True) == known
    assert any(row_of(wanted)) == (known and wanted.sampling != Sampling())
    plain = wanted.sampling == Sampling()
    assert drawn_by_device(wanted) == plain


def test_row_says_what_is_off_as_the_hosts_filters_do() -> None:
    row = row_of(request(Sampling(sample=True, top_k=2**40)))
    assert row[Wish.TOP_K] == 2**31 - 1
    assert row[Wish.TOP_P] == math.inf
    assert row[Wish.LEAST] == -math.inf
    assert row[Wish.REPETITION :] == [1.0, 0.0, 0.0, 0.0]
    assert row_of(request(Sampling(repetition_penalty=1e-40)))[Wish.REPETITION] == np.float32(1e-30)


def test_marks_say_what_is_in_the_prompt_and_how_often_a_token_was_generated() -> None:
    one = rows(PENALISED, ids=(5,) * PROMPT + (7, 5, 7, 7))
    expected = [0] * V
    expected[5], expected[7] = IN_PROMPT + 1, 3
    assert marks(one) == expected


def test_tokens_that_the_logits_lack_are_not_marked() -> None:
    one = rows(PENALISED, ids=(5, 1000) + (5,) * (PROMPT - 2) + (3, 2000))
    assert marks_of(one.sequences[0], 8).tolist() == [0, 0, 0, 1, 0, IN_PROMPT, 0, 0]


def test_requests_without_wishes_send_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "upload", lambda *_: pytest.fail("something was sent"))
    one = rows(Sampling(), Sampling(sample=True, temperature=0.5))
    assert one.state.wishes is not None
    assert not one.state.wishes.any(np.array([0, 1]))


def test_slot_given_on_to_a_request_without_wishes_has_none() -> None:
    one = rows(PENALISED)
    state, slot = one.state, one.sequences[0].slot
    assert state.wishes is not None
    assert state.wishes.any(np.array([slot]))
    one.table.leave(one.sequences[0])
    plain = rows(Sampling()).sequences[0]
    plain.leave()
    one.table.enter(plain)
    state.update()
    assert not state.wishes.any(np.array([slot]))
    assert state.wishes.table[slot].tolist() == [0.0] * len(Wish)


def test_what_could_not_be_sent_is_sent_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    one = rows(Sampling())
    state = one.state
    one.table.leave(one.sequences[0])
    late = rows(PENALISED).sequences[0]
    late.leave()
    one.table.enter(late)

    with no_room_to_send(monkeypatch, module), pytest.raises(MemoryError):
        state.update()
    state.update()
    assert state.wishes is not None
    assert state.wishes.any(np.array([late.slot]))
    assert state.wishes.marks[late.slot, 3] == IN_PROMPT


def test_wishes_that_were_sent_in_part_are_not_those_of_who_enters_the_slot_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = rows(Sampling())
    state, sent = one.state, 0
    upload = packing.upload

    def short(*arguments: Any) -> list[torch.Tensor]:
        nonlocal sent
        sent += 1
        if sent == 2:  # the row is there, and its marks are not
            raise MemoryError
        return upload(*arguments)

    def exchange(last: Sequence, sampling: Sampling) -> Sequence:
        entering = rows(sampling).sequences[0]
        entering.leave()
        one.table.leave(last)
        one.table.enter(entering)
        return entering

    late = exchange(one.sequences[0], PENALISED)
    with monkeypatch.context() as patch:
        patch.setattr(module, "upload", short)
        with pytest.raises(MemoryError):
            state.update()
    plain = exchange(late, Sampling())
    state.update()
    assert state.wishes is not None
    assert state.wishes.table[plain.slot].tolist() == [0.0] * len(Wish)
    assert not state.wishes.any(np.array([plain.slot]))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, V - 1), max_size=20), st.lists(st.integers(0, V - 1), max_size=5))
def test_counted_marks_are_those_of_the_whole_text(text: list[int], prompt: list[int]) -> None:
    ids = (*range(PROMPT), *prompt)
    one, whole = rows(PENALISED, Sampling(), ids=ids), rows(PENALISED, Sampling(), ids=(*ids, *text))
    wishes = one.state.wishes
    assert wishes is not None
    for token in text:
        wishes.count(one.slots, torch.tensor([token, token]))
    assert marks(one) == marks(whole)
    assert marks(one, 1) == [0] * V  # without penalties nobody counts


def test_counts_end_where_there_is_no_room_for_more() -> None:
    one = rows(PENALISED)
    wishes = one.state.wishes
    assert wishes is not None
    wishes.marks[one.sequences[0].slot, 20] = MOST_COUNTED
    wishes.count(one.slots, torch.tensor([20]))
    assert marks(one)[20] == MOST_COUNTED


def test_taking_back_has_the_device_know_what_the_host_does() -> None:
    one = rows(PENALISED, ids=(*range(PROMPT), 9))
    state: DeviceState = one.state
    assert state.wishes is not None
    state.keep(one.slots, one.lengths, torch.tensor([33]))
    state.wishes.count(one.slots, torch.tensor([33]))
    state.take_back(one.sequences)
    state.update()
    assert int(state.tokens[one.slots]) == 9
    assert int(state.lengths[one.slots]) == PROMPT + 1
    assert marks(one)[33] == 0


def test_step_back_undoes_the_newest_token() -> None:
    one = rows(PENALISED)
    for token in (33, 44):
        one.state.keep(one.slots, one.state.lengths[one.slots], torch.tensor([token]))
    one.state.step_back(one.slots)
    assert int(one.state.tokens[one.slots]) == 33
    assert int(one.state.lengths[one.slots]) == PROMPT + 1
