"""Quotas: buckets that fill with time, and whose bucket a request and its tokens come out of."""

from __future__ import annotations

from array import array
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.http.errors import Refused
from handlers.keys import GENERATE, SCOPES, Key
from handlers.quotas import ACCOUNT, MINUTE, Bucket, Quotas, SharedAccounts, blank, seconds_until_full
from inference.frontend.rows import WAYS, SharedRows


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


WAITS = st.lists(st.floats(0, 200), max_size=60)


@given(rate=st.integers(1, 50), waits=WAITS)
def test_no_span_of_time_gives_more_than_a_full_bucket_and_what_flowed_in(
    rate: int, waits: list[float]
) -> None:
    clock = Hand()
    bucket, given_at = Bucket(rate, clock), []
    for wait in waits:
        clock.now += wait
        if not bucket.lacking(1.0):
            bucket.spend(1.0)
            given_at.append(clock.now)
    for first, begun in enumerate(given_at):
        for last, ended in enumerate(given_at[first:]):
            assert last + 1 <= rate + (ended - begun) * rate / MINUTE + 1e-6


@given(rate=st.integers(1, 1000), debt=st.floats(0, 5000))
def test_the_time_that_is_told_is_enough_and_half_of_it_is_not(rate: int, debt: float) -> None:
    clock = Hand()
    bucket = Bucket(rate, clock)
    bucket.spend(rate + debt)
    told = bucket.lacking(1.0)
    clock.now = told / 2
    assert bucket.lacking(1.0) == pytest.approx(told / 2)
    clock.now = told + 1e-3
    assert bucket.lacking(1.0) == 0


def test_a_bucket_is_full_again_after_a_minute_and_never_more() -> None:
    clock = Hand()
    bucket = Bucket(6, clock)
    bucket.spend(6)
    clock.now = 1000 * MINUTE
    assert (bucket.lacking(6), bucket.lacking(7)) == (0, 10)


def test_a_refused_request_costs_nothing() -> None:
    clock = Hand()
    quotas = Quotas(requests_per_minute=1, clock=clock)
    quotas.take(None)
    for _ in range(5):
        with pytest.raises(Refused):
            quotas.take(None)
    clock.now = MINUTE
    quotas.take(None)


def test_what_is_given_back_can_be_taken_again_and_is_never_more_than_a_minutes() -> None:
    clock = Hand()
    quotas = Quotas(requests_per_minute=2, clock=clock)
    for _ in range(5):
        quotas.take(None)
        quotas.give_back(None)
    quotas.take(None)
    quotas.take(None)
    with pytest.raises(Refused):
        quotas.take(None)


def test_each_name_has_its_own_and_its_keys_share_it() -> None:
    quotas = Quotas(requests_per_minute=1, clock=Hand())
    quotas.take(Key("a"))
    quotas.take(Key("b"))
    with pytest.raises(Refused, match=r"`requests_per_minute` is 1, "):
        quotas.take(Key("a"))


def test_a_keys_own_rate_comes_before_the_setting() -> None:
    quotas = Quotas(requests_per_minute=1, clock=Hand())
    for _ in range(3):
        quotas.take(Key("a", requests_per_minute=3))
    with pytest.raises(Refused, match=r"`requests_per_minute` is 3, "):
        quotas.take(Key("a", requests_per_minute=3))


def test_a_rate_that_changed_holds_from_the_next_request() -> None:
    clock = Hand()
    quotas = Quotas(clock=clock)
    quotas.take(Key("a", requests_per_minute=10))
    quotas.take(Key("a", requests_per_minute=2))  # of the 9 that were left, 2 are
    quotas.take(Key("a", requests_per_minute=2))
    with pytest.raises(Refused, match=r"`requests_per_minute` is 60, "):
        quotas.take(Key("a", requests_per_minute=60))
    clock.now = 1.0
    quotas.take(Key("a", requests_per_minute=60))


@given(
    keys=st.lists(
        st.builds(
            Key,
            st.just("a"),
            scopes=st.sets(st.sampled_from(sorted(SCOPES))).map(frozenset),
            requests_per_minute=st.integers(1, 9),
        ),
        min_size=10,
        max_size=30,
    )
)
def test_no_other_key_of_a_name_and_no_edit_of_its_rates_gives_more_than_the_highest(keys: list[Key]) -> None:
    quotas, taken = Quotas(clock=Hand()), 0
    for key in keys:
        with suppress(Refused):
            quotas.take(key)
            taken += 1
    assert taken <= max(key.requests_per_minute or 0 for key in keys)


def test_a_debt_of_tokens_outlives_an_edit_of_the_line() -> None:
    clock = Hand()
    quotas = Quotas(clock=clock)
    quotas.take(Key("a", tokens_per_minute=60))
    quotas.charge("a", 120)
    with pytest.raises(Refused) as refused:
        quotas.take(Key("a", frozenset({GENERATE}), tokens_per_minute=30))
    assert refused.value.headers == {"retry-after": "122"}  # 60 owed and 1 to have, at 30 a minute


def test_tokens_of_unknown_owners_come_out_of_everybodys_bucket() -> None:
    clock = Hand()
    quotas = Quotas(tokens_per_minute=60, clock=clock)
    quotas.take(None)
    quotas.take(Key("a"))
    quotas.charge("~0123", 70)  # 11 too many to have one left
    quotas.take(Key("a"))
    with pytest.raises(Refused) as refused:
        quotas.take(None)
    assert refused.value.headers == {"retry-after": "11"}
    clock.now = 11
    quotas.take(None)


def test_tokens_are_counted_for_the_name_and_for_nobody_else() -> None:
    quotas = Quotas(tokens_per_minute=10, clock=Hand())
    quotas.take(Key("a"))
    quotas.take(None)
    quotas.charge("a", 10)
    quotas.take(None)
    with pytest.raises(Refused, match=r"`tokens_per_minute` is 10, "):
        quotas.take(Key("a"))


def test_tokens_before_any_request_are_nobodys() -> None:
    quotas = Quotas(tokens_per_minute=1, clock=Hand())
    quotas.charge("a", 100)
    quotas.take(Key("a"))


def sharing(count: int, clock: Hand, rows: int = 64, **rates: int) -> list[Quotas]:
    """Return the quotas of several processes that count together."""
    memory = SharedRows.create(rows, ACCOUNT)
    return [Quotas(accounts=SharedAccounts(memory, clock), clock=clock, **rates) for _ in range(count)]


def test_of_several_processes_one_gives_all_that_there_is_and_the_others_know() -> None:
    clock = Hand()
    first, second = sharing(2, clock, requests_per_minute=4)
    for _ in range(4):
        first.take(None)
    for each in (first, second):
        with pytest.raises(Refused, match=r"`requests_per_minute` is 4, and they are used up"):
            each.take(None)
    first.give_back(None)
    second.take(None)
    clock.now = 15.0
    second.take(None)
    with pytest.raises(Refused):
        first.take(None)


def test_tokens_that_one_process_has_counted_are_owed_in_the_others() -> None:
    clock = Hand()
    first, second = sharing(2, clock, tokens_per_minute=60)
    for key in (Key("a"), None):
        first.take(key)
        second.take(key)
    first.charge("a", 100)
    second.charge("~0123", 70)
    for each in (first, second):
        for key, told in ((Key("a"), "41"), (None, "11")):
            with pytest.raises(Refused) as refused:
                each.take(key)
            assert refused.value.headers == {"retry-after": told}


@given(
    turns=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["", "a", "b"]), st.booleans(), st.floats(0, 40)),
        max_size=40,
    )
)
def test_several_processes_let_through_what_one_would(turns: list[tuple[int, str, bool, float]]) -> None:
    clock = Hand()
    one = Quotas(3, 50, clock=clock)
    several = sharing(3, clock, requests_per_minute=3, tokens_per_minute=50)
    keys = {"": None, "a": Key("a"), "b": Key("b", requests_per_minute=7, tokens_per_minute=9)}

    def let_in(quotas: Quotas, name: str) -> bool:
        with suppress(Refused):
            quotas.take(keys[name])
            return True
        return False

    for at, name, charges, wait in turns:
        clock.now += wait
        expected = let_in(one, name)
        assert let_in(several[at], name) is expected
        if expected and charges:
            one.charge(name, 30)
            several[at].charge(name, 30)


def test_where_there_is_no_room_the_account_that_is_nearest_to_full_is_forgotten() -> None:
    first, second = sharing(2, Hand(), rows=WAYS, requests_per_minute=2)
    for name in range(WAYS):
        first.take(Key(f"{name}"))
    for name in range(WAYS - 1):
        first.take(Key(f"{name}"))
    first.take(Key("new"))
    for name in range(WAYS - 1):
        with pytest.raises(Refused):
            second.take(Key(f"{name}"))
    for _ in range(2):  # as if it hadn't asked
        second.take(Key(f"{WAYS - 1}"))


def test_an_account_is_full_once_both_of_its_buckets_are() -> None:
    numbers = blank(ACCOUNT)
    assert seconds_until_full(numbers, 5.0) == 0
    numbers[:] = array("d", [60.0, 50.0, 5.0, 120.0, -20.0, 5.0])  # 10 s and 70 s from then
    assert [seconds_until_full(numbers, now) for now in (5.0, 65.0, 80.0)] == [70.0, 10.0, 0.0]
    numbers[1] = -40.0
    assert seconds_until_full(numbers, 5.0) == 100.0


def test_several_replicas_let_through_in_time_what_one_would() -> None:
    clock = Hand()
    shares = [Quotas(requests_per_minute=5, replicas=2, clock=clock) for _ in range(2)]
    granted = 0
    for second in range(int(10 * MINUTE) + 1):
        clock.now = float(second)
        for quotas in shares:
            with suppress(Refused):
                quotas.take(None)
                granted += 1
    assert 50 <= granted <= 55
