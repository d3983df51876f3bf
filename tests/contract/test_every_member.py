"""No member of a request is accepted and ignored: the document says what becomes of each, and it is so.

For an honoured member, two values that differ in nothing else get different answers. A reported one changes
nothing and is named in a header. One that is refused, for now or for good, is refused, unless its value asks
for nothing. Members that only a refused one can hold are not looked at.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import pytest
from jsonschema import Draft4Validator
from tokenizers import AddedToken, processors

from codegen.document import SCHEMAS, Document, Node
from handlers.settings import Settings
from inference.client import EngineClient
from inference.fake import FakeCore, FakeModel
from inference.text.chat_template import ChatTemplate
from inference.text.pipeline import TextPipeline
from inference.text.stand_in import EOS, plausible_tokens, small_tokenizer
from inference.text.tokenizer import FastTokenizer
from inference.types import CoreRequest
from tests.contract.serving import events_of
from tests.support import live_server, make_service

DOCUMENT = Document.load()
ABSENT = object()  # in place of a value: take the member away
SPEAKING = "What is the weather?"  # a prompt that is answered with REPLY
REPLY = "It is sunny. Bye"


@dataclass(frozen=True, slots=True)
class Place:
    """A member of the body of one operation."""

    path: str  # of the operation
    root: str  # schema of the body
    schema: str  # schema of the object that has the member
    member: str
    steps: tuple[str | int, ...]  # the way to that object
    told: Node  # the member's schema

    @property
    def support(self) -> str:
        """Return what the document says of it."""
        return str(self.told["x-support"])

    @property
    def name(self) -> str:
        """Return the name that the server has for it."""
        way = "".join("[]" if isinstance(step, int) else f".{step}" for step in self.steps)
        return f"{way}.{self.member}".removeprefix(".")

    def __str__(self) -> str:
        return f"{self.path} {self.root} {self.name}"


def places() -> Iterator[Place]:
    """Yield every member that a request can have, outside of refused ones."""
    for request in DOCUMENT.requests():
        root = request.node["schema"]
        for branch in DOCUMENT.resolve(root).get("anyOf", [root]):
            yield from members(request.operation.path, component(branch), branch, ())


def members(path: str, root: str, schema: Node, steps: tuple[str | int, ...]) -> Iterator[Place]:
    """Yield the members of a schema, and what those that are honoured hold."""
    resolved = DOCUMENT.resolve(schema)
    for name, member in resolved.get("properties", {}).items():
        told = {**DOCUMENT.resolve(member), **{key: member[key] for key in member if key != "$ref"}}
        yield Place(path, root, component(schema), name, steps, told)
        if told["x-support"] == "honoured":
            yield from members(path, root, member, (*steps, name))
    for branch in resolved.get("anyOf", ()):
        yield from members(path, root, branch, steps)
    if "items" in resolved:
        yield from members(path, root, resolved["items"], (*steps, 0))


def component(schema: Node) -> str:
    """Return the name of a schema that is referred to."""
    return str(schema.get("$ref", "")).removeprefix(SCHEMAS)


PLACES = tuple(places())
HONOURED = [place for place in PLACES if place.support == "honoured"]
REPORTED = [place for place in PLACES if place.support == "reported"]
REFUSED = [place for place in PLACES if place.support in ("later", "refused")]

# --- bodies -----------------------------------------------------------------------------------

CALL = {"id": "0", "type": "function", "function": {"name": "f"}}
MESSAGE = {"role": "user", "content": [{"type": "text", "text": "Hello"}], "tool_calls": [CALL]}
GENERATE = {"inputs": "Hello", "parameters": {"max_new_tokens": 8}}
OPENAI = {"temperature": 0, "max_tokens": 8, "stream_options": {}}
BASES: dict[str, dict[str, Any]] = {  # by the body's schema; every object is there that a member can be in
    "GenerateRequest": GENERATE,
    "CompatGenerateRequest": GENERATE,
    "TokenizeRequest": {"inputs": "Hello"},
    "ChatTokenizeRequest": {"messages": [MESSAGE]},
    "ChatRequest": {"messages": [MESSAGE], **OPENAI},
    "CompletionRequest": {"prompt": "Hello", **OPENAI},
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two values of a member, what stands beside it, and what the body has."""

    one: Any
    other: Any
    beside: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)


SAMPLED = {"do_sample": True, "seed": 1}
DRAWN = {"temperature": 1, "seed": 1}
STREAMED = {"stream": True}
SAMPLING = {
    "repetition_penalty": (1.1, 1.2),
    "frequency_penalty": (0.5, 1.0),
    "presence_penalty": (0.5, 1.0),
    "top_k": (5, 6),
    "top_p": (0.5, 0.6),
    "typical_p": (0.5, 0.6),
}
BOTH_OF_OPENAI = {
    "max_tokens": Pair(1, 2),
    "temperature": Pair(0.5, 0.9, {"seed": 1}),
    "seed": Pair(1, 2, {"temperature": 1}),
    "stream": Pair(False, True),
    "stream_options": Pair({}, {"include_usage": True}, STREAMED),
    **{name: Pair(*values, DRAWN) for name, values in SAMPLING.items()},
}
PAIRS: dict[str, dict[str, Pair]] = {
    "GenerateRequest": {
        "inputs": Pair("Hello", "Bye"),
        "parameters": Pair({"max_new_tokens": 1}, {"max_new_tokens": 2}),
    },
    "CompatGenerateRequest": {
        "inputs": Pair("Hello", "Bye"),
        "parameters": Pair({"max_new_tokens": 1}, {"max_new_tokens": 2}),
        "stream": Pair(False, True),
    },
    "GenerateParameters": {
        "best_of": Pair(1, 2, {"temperature": 1.0, "details": True}),  # greedy, and yet allowed, as in TGI
        "temperature": Pair(0.5, 0.9, SAMPLED),
        **{name: Pair(*values, SAMPLED) for name, values in SAMPLING.items()},
        "do_sample": Pair(False, True, {"seed": 1}),
        "max_new_tokens": Pair(1, 2),
        "return_full_text": Pair(False, True),
        "stop": Pair([], ["sunny"], {"max_new_tokens": 100}, {"inputs": SPEAKING}),
        "truncate": Pair(1, 3),
        "details": Pair(False, True),
        "decoder_input_details": Pair(False, True),
        "seed": Pair(1, 2, {"do_sample": True}),
        "top_n_tokens": Pair(1, 2, {"details": True}),
    },
    "TokenizeRequest": {"inputs": Pair("Hello", "Bye"), "add_special_tokens": Pair(True, False)},
    "ChatTokenizeRequest": {"messages": Pair([MESSAGE], [MESSAGE, MESSAGE])},
    "ChatRequest": {
        **BOTH_OF_OPENAI,
        "messages": Pair([MESSAGE], [MESSAGE, MESSAGE]),
        "model": Pair("a", "b"),
        "max_completion_tokens": Pair(1, 2, {"max_tokens": ABSENT}),
        "stop": Pair(None, "sunny", {"max_tokens": 100, "messages": [{"role": "user", "content": SPEAKING}]}),
        "logprobs": Pair(False, True),
        "top_logprobs": Pair(1, 2, {"logprobs": True}),
    },
    "Message": {
        "role": Pair("user", "system"),
        "content": Pair("Hello", "Bye"),
        "name": Pair("Ann", "Bob"),
        "tool_calls": Pair([CALL], [CALL, CALL]),
        "tool_call_id": Pair("0", "1"),
    },
    "MessageChunk": {"type": Pair("text", "image_url"), "text": Pair("Hello", "Bye")},
    "MessageToolCall": {
        "id": Pair("0", "1"),
        "type": Pair("function", "custom"),
        "function": Pair({"name": "f"}, {"name": "g"}),
    },
    "CalledFunction": {
        "name": Pair("f", "g"),
        "arguments": Pair({"a": 1}, {"a": 2}),
        "parameters": Pair({"a": 1}, {"a": 2}),
        "description": Pair("It does f.", "It does g."),
    },
    "StreamOptions": {"include_usage": Pair(False, True, body=STREAMED)},
    "CompletionRequest": {
        **BOTH_OF_OPENAI,
        "prompt": Pair("Hello", ["Hello", "Bye"]),
        "stop": Pair(None, "sunny", {"max_tokens": 100, "prompt": SPEAKING}),
    },
}
VALUES = [  # of any member, as far as they fit its schema
    *(True, False, 0, 1, 3, 0.25, "", "x", {}, [], {"a": 1}, [{}], ["x"], {"7": 1.5}, [0.5]),
    *({"url": "https://example.com/cat.png"}, {"type": "json_object"}, {"type": "regex", "value": "a"}),
    *([{"type": "function", "function": {"name": "f"}}], {"type": "function", "function": {"name": "f"}}),
]


def body_of(place: Place, value: Any, pair: Pair | None = None) -> dict[str, Any]:
    """Return the body that has `value` at the place."""
    body = copy.deepcopy(BASES[place.root])
    if pair is not None:
        set_all(body, pair.body)
    holder: Any = body
    for step in place.steps:
        holder = holder[step]
    set_all(holder, {**(pair.beside if pair is not None else {}), place.member: value})
    return body


def set_all(holder: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Set members, and take away those that are to be absent."""
    holder.update(values)
    for name in [name for name in holder if holder[name] is ABSENT]:
        del holder[name]


def fitting(place: Place) -> tuple[list[Any], list[Any]]:
    """Return values that the member's schema takes: those that ask for something, and those that don't."""
    fits = Draft4Validator(DOCUMENT.draft4(place.told)).is_valid
    neutral = [value for value in (*place.told.get("x-neutral", ()), None) if fits(value)]
    asking = [value for value in VALUES if fits(value) and not any(same(value, none) for none in neutral)]
    return asking, neutral


def same(left: Any, right: Any) -> bool:
    """Compare as JSON does, where true is not 1."""
    return bool(left == right) and isinstance(left, bool) is isinstance(right, bool)


# --- the server -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """Serve a fake engine whose prompts show all of a message, and whose tokenizer adds a token."""
    settings = Settings(hostname="127.0.0.1", validate_responses=True, enable_prefill_logprobs=True)
    with (
        live_server(make_service(settings, engine(settings))) as live,
        httpx.Client(base_url=live.base_url) as client,
    ):
        yield client


def engine(settings: Settings) -> EngineClient:
    """Return an engine that answers SPEAKING with REPLY, and anything else with what a hash says."""
    small = small_tokenizer()
    small.add_special_tokens([AddedToken("<s>", special=True)])
    special = [("<s>", small.token_to_id("<s>"))]
    small.post_processor = processors.TemplateProcessing(
        single="<s>:0 $A:0", pair=None, special_tokens=special
    )
    tokenizer = FastTokenizer(small)
    reply = tokenizer.encode(REPLY, add_special_tokens=False)
    key = tokenizer.encode(SPEAKING, add_special_tokens=False)

    def script(request: CoreRequest) -> list[int] | None:
        ids = list(request.prompt_ids)
        return reply if any(ids[at : at + len(key)] == key for at in range(len(ids))) else None

    (eos,) = tokenizer.encode(EOS, add_special_tokens=False)
    model = FakeModel(tokens=plausible_tokens(tokenizer), eos_token_id=eos, script=script)
    template = ChatTemplate({"default": "{{ messages | tojson }}"}, {})
    pipeline = partial(TextPipeline, tokenizer, template, workers=1)
    return EngineClient(FakeCore(model), settings.engine_config(), pipeline)


def ask(http: httpx.Client, place: Place, body: dict[str, Any]) -> tuple[httpx.Response, Any]:
    """Return the response, and what it says apart from ids and times."""
    response = http.post(place.path, json=body)
    streamed = response.headers["content-type"] == "text/event-stream"
    said = events_of(response) if streamed else response.json()
    for part in said if isinstance(said, list) else [said]:
        if isinstance(part, dict) and "created" in part:
            del part["created"], part["id"]
    return response, (response.status_code, said)


# --- what the document says, and what is so ---------------------------------------------------


def test_every_honoured_member_has_its_pair_of_values() -> None:
    written = {(schema, member) for schema, pairs in PAIRS.items() for member in pairs}
    assert written == {(place.schema, place.member) for place in HONOURED}


@pytest.mark.parametrize("place", HONOURED, ids=str)
def test_an_honoured_member_makes_a_difference(http: httpx.Client, place: Place) -> None:
    pair = PAIRS[place.schema][place.member]
    response, answer = ask(http, place, body_of(place, pair.one, pair))
    _, again = ask(http, place, body_of(place, pair.one, pair))
    _, other = ask(http, place, body_of(place, pair.other, pair))
    assert response.status_code == 200, response.text
    assert "x-ignored-parameters" not in response.headers
    assert answer == again
    assert answer != other


@pytest.mark.parametrize("place", REPORTED, ids=str)
def test_a_reported_member_is_named_and_changes_nothing(http: httpx.Client, place: Place) -> None:
    asking, neutral = fitting(place)
    _, answer = ask(http, place, body_of(place, ABSENT))
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
    _, answer = ask(http, place, body_of(place, ABSENT))
    assert asking or {True, False} < set(neutral)
    for value in asking:
        response, _ = ask(http, place, body_of(place, value))
        error = response.json()
        assert response.status_code == 422, value
        assert error == place.told.get("x-error", error)
        assert "x-error" in place.told or f"`{place.name}` is not supported" in error["error"], value
    for value in neutral:
        response, same_answer = ask(http, place, body_of(place, value))
        assert same_answer == answer, value
        assert "x-ignored-parameters" not in response.headers
