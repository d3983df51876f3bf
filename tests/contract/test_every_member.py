"""No member of a request is accepted and ignored: the document says what becomes of each, and it is so.

For an honoured member, two values that differ in nothing else get different answers. A descriptive one
changes nothing. A reported one changes nothing and is named in a header. One that is refused, for now or for
good, is refused, unless its value asks for nothing. Members that only a refused one can hold are not looked
at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from handlers.http.message_errors import speaks_messages
from handlers.settings.table import Settings
from tests.contract.fitting_values import fitting
from tests.contract.likeness import without_its_own
from tests.contract.member_bodies import ABSENT
from tests.contract.member_values import (
    PAIRS,
    PAIRS_OF,
    body_of,
    pair_of,
)
from tests.contract.members import PLACES, Place
from tests.contract.pair import Pair
from tests.contract.properties.engine import telling_engine
from tests.contract.serving import events_of
from tests.support import error_of, live_server, make_service, message_of

HONOURED = [place for place in PLACES if place.support == "honoured"]
DESCRIPTIVE = [place for place in PLACES if place.support == "descriptive"]
REPORTED = [place for place in PLACES if place.support == "reported"]
REFUSED = [place for place in PLACES if place.support in ("later", "refused")]

# --- the server -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """Serve a fake engine whose prompts show all of a message, and whose tokenizer adds a token."""
    settings = Settings(
        hostname="127.0.0.1",
        validate_responses=True,
        enable_prefill_logprobs=True,
        reasoning_format="raw",  # a call that is required may have a thought before it, be it one without end
    )
    with (
        live_server(make_service(settings, telling_engine(settings.engine_config()))) as live,
        live.client() as client,
    ):
        yield client


def ask(http: httpx.Client, place: Place, body: dict[str, Any]) -> tuple[httpx.Response, Any]:
    """Return the response, and what it says apart from ids, times and what was found in the cache."""
    response = http.post(place.path.format(name="m", version="1"), json=body)
    streamed = response.headers["content-type"] == "text/event-stream"
    said = events_of(response) if streamed else response.json()
    return response, (response.status_code, without_its_own(said))


def plain_answer(http: httpx.Client, place: Place) -> Any:
    """Return what is said without the member."""
    response, answer = ask(http, place, body_of(place, ABSENT))
    assert response.status_code == 200, response.text
    assert "x-ignored-parameters" not in response.headers
    return answer


# --- what the document says, and what is so ---------------------------------------------------


def test_every_honoured_member_has_its_pair_of_values() -> None:
    written = {(schema, member) for schema, pairs in PAIRS.items() for member in pairs}
    assert written == {(place.schema, place.member) for place in HONOURED}
    assert PAIRS_OF.keys() <= {(place.root, place.member) for place in HONOURED}


def test_every_operation_with_a_body_is_looked_at() -> None:
    assert {place.path for place in HONOURED} == {place.path for place in PLACES}


@pytest.mark.parametrize("place", HONOURED, ids=str)
def test_an_honoured_member_makes_a_difference(http: httpx.Client, place: Place) -> None:
    pair = pair_of(place)
    response, answer = ask(http, place, body_of(place, pair.one, pair))
    _, again = ask(http, place, body_of(place, pair.one, pair))
    _, other = ask(http, place, body_of(place, pair.other, pair))
    assert response.status_code == 200, response.text
    assert place.name not in response.headers.get("x-ignored-parameters", "").split(",")
    assert answer == again
    assert answer != other


@pytest.mark.parametrize("place", [place for place in HONOURED if "x-default" in place.told], ids=str)
def test_the_default_is_what_absence_means(http: httpx.Client, place: Place) -> None:
    default = place.told["x-default"]
    if (place.root, place.member) == ("VertexRequest", "do_sample"):
        default = True  # as the description there says
    seeded = Pair(default, ABSENT, {"seed": 1} if "seed" in PAIRS[place.schema] else {})
    answers = [ask(http, place, body_of(place, value, seeded)) for value in (seeded.one, seeded.other)]
    assert answers[0][1] == answers[1][1]
    assert answers[0][0].status_code == 200, answers[0][1]


@pytest.mark.parametrize("place", DESCRIPTIVE, ids=str)
def test_a_descriptive_member_changes_nothing(http: httpx.Client, place: Place) -> None:
    asking, _ = fitting(place)
    answer = plain_answer(http, place)
    assert asking
    for value in [*asking, None]:
        response, same_answer = ask(http, place, body_of(place, value))
        assert same_answer == answer, value
        assert "x-ignored-parameters" not in response.headers


@pytest.mark.parametrize("place", REPORTED, ids=str)
def test_a_reported_member_is_named_and_changes_nothing(http: httpx.Client, place: Place) -> None:
    asking, neutral = fitting(place)
    answer = plain_answer(http, place)
    assert asking
    for value, named in [*((value, place.name) for value in asking), *((value, None) for value in neutral)]:
        response, same_answer = ask(http, place, body_of(place, value))
        assert same_answer == answer, value
        assert response.headers.get("x-ignored-parameters") == named, value


@pytest.mark.parametrize("place", REFUSED, ids=str)
def test_a_member_without_support_is_refused_unless_it_asks_for_nothing(
    http: httpx.Client, place: Place
) -> None:
    asking, neutral = fitting(place)
    answer = plain_answer(http, place)
    assert asking
    for value in asking:
        response, _ = ask(http, place, body_of(place, value))
        error = error_of(response)
        assert response.status_code == (400 if speaks_messages(place.path) else 422), value
        assert error == place.told.get("x-error", error)
        assert "x-error" in place.told or f"`{place.at}` is not supported" in message_of(error), value
    for value in neutral:
        response, same_answer = ask(http, place, body_of(place, value))
        assert same_answer == answer, value
        assert "x-ignored-parameters" not in response.headers
