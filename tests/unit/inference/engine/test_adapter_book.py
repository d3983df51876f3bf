"""What adapters are called and numbered by, whatever comes and goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.adapters import PLACES, place_of
from inference.engine.adapter_book import MOST, AdapterBook
from inference.errors import AdapterRefused


def book(*names: str, limit: int = 100) -> AdapterBook:
    return AdapterBook(names, "org/m", limit)


def load(books: AdapterBook, name: str, nbytes: int = 1) -> int:
    books.check(name, replaces=True)
    number = books.begin(name, f"from/{name}", nbytes)
    assert books.admit(name).adapters[name] == number
    return number


def nobody(number: int) -> bool:
    return False


def test_those_from_the_start_are_numbered_by_their_places_and_stay() -> None:
    books = book("a", "b")
    assert books.adapters == {"a": 0, "b": 1}
    for name in "ab":
        with pytest.raises(AdapterRefused, match="it stays as it is"):
            books.check(name, replaces=True)
        with pytest.raises(AdapterRefused, match="it stays as it is"):
            books.remove(name)


def test_a_place_is_given_away_again_and_a_number_never() -> None:
    books = book("a")
    first = load(books, "x")
    edition = books.remove("x")
    assert "x" not in edition.adapters
    assert books.knows(first)
    assert books.free(edition.number - 1, nobody) == []  # not all have heard
    assert books.free(edition.number, lambda number: number == first) == []  # it computes yet
    other = load(books, "y")
    assert place_of(other) != place_of(first)
    assert books.free(edition.number, nobody) == [place_of(first)]
    assert not books.knows(first)
    again = load(books, "x")
    assert place_of(again) == place_of(first)
    assert again != first


def test_one_in_the_place_of_another_of_its_name_leaves_that_on_its_way_out() -> None:
    books = book()
    first = load(books, "x")
    with pytest.raises(AdapterRefused, match="has already been loaded"):
        books.check("x", replaces=False)
    second = load(books, "x")
    assert books.knows(first)
    assert books.knows(second)
    assert books.waits
    assert books.free(2, nobody) == [place_of(first)]
    assert not books.waits


def test_bytes_are_held_until_a_place_is_free() -> None:
    books = book(limit=10)
    load(books, "x", 6)
    with pytest.raises(AdapterRefused, match=r"takes 5 bytes, and of the 10 .* 6 are taken"):
        books.begin("y", "y", 5)
    edition = books.remove("x")
    with pytest.raises(AdapterRefused, match="6 are taken"):
        books.begin("y", "y", 5)
    books.free(edition.number, nobody)
    books.begin("y", "y", 5)
    books.give_up()
    books.begin("z", "z", 10)


@pytest.mark.parametrize("name", ["", " ", "x\n", "x" * 201, "tgi", "org/m", "a\u202eb"])
def test_names_that_nobody_could_tell_apart_are_refused(name: str) -> None:
    with pytest.raises(AdapterRefused, match="`lora_name` must"):
        book().check(name, replaces=False)


def test_there_are_only_so_many() -> None:
    books = book(limit=MOST * 2)
    for at in range(MOST):
        load(books, f"{at}")
    books.check("0", replaces=True)
    with pytest.raises(AdapterRefused, match=f"There are {MOST} adapters"):
        books.check("x", replaces=False)


def test_an_edition_tells_what_another_engine_needs() -> None:
    books = book("a")
    load(books, "x")
    load(books, "y")
    edition = books.remove("x")
    assert (edition.number, edition.kept) == (3, {"y": "from/y"})
    assert edition.adapters.keys() == {"a", "y"}


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.booleans()), max_size=40))
def test_no_two_that_are_there_share_a_place(steps: list[tuple[str, bool, bool]]) -> None:
    books, told, seen = book("s"), 0, set[int]()
    there: dict[int, int] = {0: 0}  # numbers by their places
    for name, loads, hears in steps:
        if loads:
            number = load(books, name)
            assert number not in seen
            assert place_of(number) not in there
            seen.add(number)
            there[place_of(number)] = number
        elif name in books.adapters:
            told = books.remove(name).number
        if hears:
            for place in books.free(told, nobody):
                del there[place]
        assert all(books.knows(number) for number in there.values())
        assert set(books.adapters.values()) <= set(there.values())


def test_a_place_of_none_is_none() -> None:
    assert place_of(-1) == -1
    assert place_of(3 * PLACES + 5) == 5
