from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.fleet.affinity import LONGEST, SHORTEST, SLACK, Ledger, beginnings

NAMES = st.sampled_from("abcdef")


def body(prompt: object, name: str = "inputs", **rest: object) -> bytes:
    return json.dumps({name: prompt, **rest}).encode()


def chat(*contents: str) -> bytes:
    return body([{"role": "user", "content": content} for content in contents], "messages", stream=True)


def test_prompts_that_begin_alike_share_the_digests_up_to_there() -> None:
    first, second = beginnings(body("x" * 1000 + "a" * 3000)), beginnings(body("x" * 1000 + "b" * 3000))
    assert first[:2] == second[:2]
    assert not set(first[2:]) & set(second[2:])


def test_a_conversation_that_goes_on_keeps_its_digests() -> None:
    before, after = beginnings(chat("a" * 1500)), beginnings(chat("a" * 1500, "b" * 4000))
    assert len(before) == 3
    assert after[:3] == before


@pytest.mark.parametrize("name", ["inputs", "input", "prompt", "messages", "instances", "text_input"])
def test_what_comes_before_the_prompt_does_not_count(name: str) -> None:
    prompt = "x" * 600
    told = json.dumps({"max_tokens": 5, "temperature": 0.5, name: prompt}).encode()
    assert beginnings(told) == beginnings(body(prompt, name))
    assert beginnings(told)


@pytest.mark.parametrize(
    "given_body", [b"", b"{}", b"\xff\xfe", body("x" * (SHORTEST - 10)), b'{"input_ids": [1]}']
)
def test_what_is_short_or_no_prompt_has_no_digests(given_body: bytes) -> None:
    assert beginnings(given_body) == ()


@given(st.binary(max_size=5000), st.binary(max_size=5000))
def test_only_equal_beginnings_have_equal_digests(one: bytes, other: bytes) -> None:
    mark = b'{"inputs":'
    digests = zip(beginnings(mark + one), beginnings(mark + other), strict=False)
    for at, (left, right) in enumerate(digests):
        length = SHORTEST * 2**at
        assert (left == right) == (one[:length] == other[:length])


def test_a_known_beginning_goes_where_it_is_known_and_others_to_the_idlest() -> None:
    ledger: Ledger[str] = Ledger()
    ledger.note([b"1", b"2"], "b")
    assert ledger.rank([b"1", b"2", b"3"], {"a": 0, "b": 3, "c": 1}) == ["b", "a", "c"]
    assert ledger.rank([b"4"], {"a": 2, "b": 3, "c": 1}) == ["c", "a", "b"]


def test_the_longest_known_beginning_counts() -> None:
    ledger: Ledger[str] = Ledger()
    ledger.note([b"1"], "a")
    ledger.note([b"1", b"2"], "b")
    assert ledger.rank([b"1", b"2"], {"a": 0, "b": 2})[0] == "b"
    assert ledger.rank([b"1", b"x"], {"a": 0, "b": 2})[0] == "a"


def test_a_replica_that_has_far_more_to_do_is_not_asked_first() -> None:
    ledger: Ledger[str] = Ledger()
    ledger.note([b"1"], "a")
    assert ledger.rank([b"1"], {"a": 2 * 3 + SLACK, "b": 3})[0] == "a"
    assert ledger.rank([b"1"], {"a": 2 * 3 + SLACK + 1, "b": 3})[0] == "b"


def test_what_is_gone_is_forgotten() -> None:
    ledger: Ledger[str] = Ledger()
    ledger.note([b"1", b"2"], "a")
    ledger.note([b"1"], "b")
    ledger.forget({"b": None})
    assert len(ledger) == 1
    assert ledger.rank([b"2"], {"a": 9, "b": 0}) == ["b", "a"]


def test_only_so_many_beginnings_are_remembered_the_newest() -> None:
    ledger: Ledger[str] = Ledger(remembered=2)
    for digest in (b"1", b"2", b"1", b"3"):
        ledger.note([digest], "a")
    assert len(ledger) == 2
    assert ledger.rank([b"1"], {"a": 1, "b": 0})[0] == "a"
    assert ledger.rank([b"2"], {"a": 1, "b": 0})[0] == "b"


@given(
    st.lists(st.tuples(st.lists(st.binary(min_size=1, max_size=1), max_size=4), NAMES), max_size=30),
    st.lists(st.binary(min_size=1, max_size=1), max_size=4),
    st.dictionaries(NAMES, st.integers(0, 50)),
)
def test_every_replica_is_ranked_once_and_none_with_far_more_to_do_is_first(
    noted: list[tuple[list[bytes], str]], digests: list[bytes], loads: dict[str, int]
) -> None:
    ledger: Ledger[str] = Ledger()
    for told, replica in noted:
        ledger.note(told, replica)
    order = ledger.rank(digests, loads)
    assert sorted(order) == sorted(loads)
    if loads:
        assert loads[order[0]] <= 2 * min(loads.values()) + SLACK
        assert [loads[each] for each in order[1:]] == sorted(loads[each] for each in order[1:])


def test_the_beginning_of_a_large_body_is_enough() -> None:
    body = b'{"inputs": "' + b"x" * (4 * LONGEST)
    told = beginnings(body)
    assert told == beginnings(body + b"y")
    assert len(told) == (LONGEST // SHORTEST).bit_length()
