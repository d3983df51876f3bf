from __future__ import annotations

import itertools

from benchmarks.soak_requests import asks
from inference.types import Grammar, GrammarKind, Request

LONGEST = 256


def requests(count: int, seed: int) -> list[Request]:
    return [request for ask in asks(count, seed, LONGEST) for request in ask.requests]


def test_so_many_sequences_are_asked_for_as_were_wanted_each_with_a_name_of_its_own() -> None:
    for count in (1, 2, 500):
        found = requests(count, seed=3)
        assert len({request.id for request in found}) == len(found) == count


def test_one_seed_asks_for_the_same_and_another_for_something_else() -> None:
    assert requests(50, seed=1) == requests(50, seed=1) != requests(50, seed=2)


def test_there_is_something_of_everything() -> None:
    made = list(asks(2000, seed=0, longest=LONGEST))
    found = [request for ask in made for request in ask.requests]
    assert {len(ask.requests) for ask in made} == {1, 2, 3}
    assert {request.grammar.kind for request in found if isinstance(request.grammar, Grammar)} == {
        GrammarKind.JSON_SCHEMA,
        GrammarKind.REGEX,
    }
    assert {bool(request.stop) for request in found} == {request.sampling.sample for request in found}
    assert any(ask.stays == 0 for ask in made)
    assert any(ask.patience for ask in made)
    assert 0.005 < sum(ask.refused for ask in made) / len(made) < 0.05


def test_beginnings_are_shared_and_lengths_are_within_the_limit() -> None:
    found = [request for request in requests(500, seed=0) if request.truncate]
    beginnings = sorted(request.prompt[:60] for request in found if len(request.prompt) > 120)
    assert sum(one == other for one, other in itertools.pairwise(beginnings)) > 100
    assert all(
        request.truncate + (request.max_new_tokens or 0) <= LONGEST for request in found if request.truncate
    )
