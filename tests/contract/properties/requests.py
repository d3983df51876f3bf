"""Requests of our own making: without a key, with a broken body, streamed, with a value out of its range."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import requests

from codegen.document import EVENTS, JSON
from codegen.property_checks import IGNORED, Exchange, events_of, parsed, problems
from codegen.property_contract import Promise
from tests.contract.likeness import without_its_own
from tests.contract.member_values import body_of, pair_of
from tests.contract.members import PLACES, Place
from tests.contract.properties.cases import promise
from tests.contract.properties.ranges import values_beyond, values_beyond_others
from tests.contract.properties.target import FAILING, PAYLOAD_LIMIT, Target

TEXT = "The sky is"
UNKNOWN = "never_heard_of"
ASKING: Mapping[str, Any] = {  # by the member that a dialect's request begins with
    "inputs": lambda text: text,
    "prompt": lambda text: text,
    "messages": lambda text: [{"role": "user", "content": text}],
    "input": lambda text: text,
}
WRONG_KEYS = ("Bearer wrong", "Bearer ", "Basic {key}", "{key}", "Bearer {key}x")
LATIN = b'{"inputs": "caf\xe9", "prompt": "caf\xe9", "messages": [], "instances": []}'  # no UTF-8
OTHER_CHARSET = f"{JSON}; charset=latin-1"
OTHER_TYPES = (None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp")


def asks_for_the_key(name: str, target: Target) -> None:
    """Without the key, and with wrong ones, the answer is 401, whatever the body."""
    if target.key is None:
        pytest.skip("the server has no key")
    for key in (None, *WRONG_KEYS):
        for content in (b"{}", b"{"):
            headers = {} if key is None else {"authorization": key.format(key=target.key)}
            answer = ask(name, target, content, {"content-type": JSON, **headers})
            assert answer.status == 401, key
            told = promise(name).answers[401]
            if not told.bodies or told.may_be_empty:
                assert answer.content == b""
                assert "content-type" not in answer.headers
            assert answer.headers["www-authenticate"] == "Bearer"
            assert list(problems(promise(name), answer)) == []
    assert ask(name, target, b"{}", {"content-type": JSON, **target.headers()}).status != 401


def is_open_to_all(name: str, target: Target) -> None:
    """Nothing depends on a key."""
    with_key = ask(name, target, None, target.headers())
    for key in (None, *WRONG_KEYS):
        headers = {} if key is None else {"authorization": key.format(key=target.key)}
        answer = ask(name, target, None, headers)
        assert answer.status == with_key.status
        assert list(problems(promise(name), answer)) == []


def refuses_what_is_no_json(name: str, target: Target) -> None:
    """A broken body is 400, one that isn't declared as JSON 415, one that is too large 413."""
    json_headers = {"content-type": JSON, **target.headers()}
    for content in (b"", b"{", b"{} {}", b"\xff", b'{"a": NaN}', b'{"a": "\\ud800"}'):
        answer = ask(name, target, content, json_headers)
        assert answer.status == 400, content
        assert list(problems(promise(name), answer)) == []
    for json_type in (JSON, OTHER_CHARSET):
        answer = ask(name, target, LATIN, {**json_headers, "content-type": json_type})
        assert answer.status == 400, json_type
        assert list(problems(promise(name), answer)) == []
    for declared in OTHER_TYPES:
        headers = target.headers() if declared is None else {"content-type": declared, **target.headers()}
        answer = ask(name, target, b"{}", headers)
        assert answer.status == 415, declared
        assert list(problems(promise(name), answer)) == []
    if target.app is not None:
        answer = ask(name, target, b'"' + b"x" * PAYLOAD_LIMIT + b'"', json_headers)
        assert answer.status == 413
        assert promise(name).error.fits(answer.answer)


def streams(name: str, member: str, target: Target, body: Mapping[str, Any]) -> None:
    """A stream of one dialect has its events, one end, and what ends the stream, if anything does."""
    limit = "max_output_tokens" if member == "input" else "max_tokens"
    for more in ({}, {limit: 3}, {"stream_options": {"include_usage": True}}):
        answer = ask_json(name, target, {**body, member: ASKING[member](TEXT), **more})
        assert (answer.status, answer.media_type) == (200, EVENTS)
        assert list(problems(promise(name), answer)) == []


def stream_fails_in_an_event(name: str, member: str, target: Target, body: Mapping[str, Any]) -> None:
    """A failure after the first token is an event of the dialect's form, and the last one."""
    if target.app is None:
        pytest.skip("this engine fails for nobody")
    answer = ask_json(name, target, {**body, member: ASKING[member](FAILING)})
    assert (answer.status, answer.media_type) == (200, EVENTS)
    assert list(problems(promise(name), answer)) == []
    *told, last = events_of(answer) or [None]
    failures = [dialect.error for dialect in promise(name).dialects]
    assert any(failure.fits(last) for failure in failures)
    assert len(told) >= 2
    assert not any(failure.fits(event) for failure in failures for event in told)


def names_unknown_members(name: str, target: Target) -> None:
    """Members that the document doesn't know change nothing and are named, at each depth where some are."""
    here = _honoured(name)
    assert here
    for steps, root in sorted({(place.steps, place.root) for place in here}, key=str):
        place = next(each for each in here if (each.steps, each.root) == (steps, root))
        unknown = replace(place, member=UNKNOWN)
        answer = ask_json(name, target, body_of(unknown, True, pair_of(place)))
        assert answer.status == 200, f"{unknown}: {answer.content!r}"
        assert unknown.name in answer.headers.get(IGNORED, "").split(","), unknown
        assert list(problems(promise(name), answer)) == []


def refuses_values_beyond_ranges(name: str, target: Target) -> None:
    """A value out of a member's range is refused, if its range is written in numbers or names a member."""
    here = _honoured(name)
    beyond = [(place, value, pair_of(place)) for place in here for value in values_beyond(place)]
    for place in here:
        for value, beside in values_beyond_others(place):
            beyond.append((place, value, replace(pair_of(place), beside=beside)))
    for place, value, pair in beyond:
        answer = ask_json(name, target, body_of(place, value, pair))
        assert answer.status == promise(name).invalid, (
            f"{place} = {value!r}: {answer.status} {answer.content!r}"
        )
        assert list(problems(promise(name), answer)) == []


def tells_members_apart(name: str, target: Target) -> None:
    """Of two values of an honoured member, each has its own answer, and the same one when asked again."""
    assert _honoured(name)
    for place in _honoured(name):
        pair = pair_of(place)
        bodies = [body_of(place, value, pair) for value in (pair.one, pair.one, pair.other)]
        answers = [ask_json(name, target, body) for body in bodies]
        for answer in answers:
            assert list(problems(promise(name), answer)) == [], f"{place}: {answer.body}"
        if target.app is None:
            continue  # a real model may have one answer to both
        assert answers[0].status == 200, f"{place}: {answers[0].content!r}"
        one, again, other = map(_said, answers)
        assert one == again, f"{place} = {pair.one!r}: two answers"
        assert one != other, f"{place}: {pair.one!r} and {pair.other!r} have the same answer"


def _honoured(name: str) -> list[Place]:
    honoured = (place for place in PLACES if place.support == "honoured")
    return [place for place in honoured if place.path == promise(name).path]


def _said(answer: Exchange) -> Any:
    """Return what an answer says, without what is another each time."""
    events = events_of(answer)
    return answer.status, without_its_own(answer.answer if events is None else events)


def ask_json(name: str, target: Target, body: Any) -> Exchange:
    """Post a body with the key."""
    headers = {"content-type": JSON, "x-request-id": "asked-1", **target.headers()}
    return ask(name, target, json.dumps(body).encode(), headers)


def ask(name: str, target: Target, content: bytes | None, headers: Mapping[str, str]) -> Exchange:
    """Send a request to an operation."""
    asked = promise(name)
    response = target.request(asked.method, _path(asked), data=content, headers=dict(headers))
    return _exchange(asked, response, content, headers)


def _exchange(
    asked: Promise, response: requests.Response, content: bytes | None, headers: Mapping[str, str]
) -> Exchange:
    return Exchange(
        method=asked.method,
        sent=headers,
        body=parsed(headers.get("content-type", ""), content),
        status=response.status_code,
        headers={name.lower(): value for name, value in response.headers.items()},
        content=response.content,
    )


def _path(asked: Promise) -> str:
    return asked.path.format(name="m", version="1", model="org/m")
