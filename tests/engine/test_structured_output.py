"""The embedded model, drawing at random under a JSON Schema, writes valid JSON whatever else happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from inference.config import EngineConfig, ModelConfig
from inference.types import CoreRequest, FinishReason, Sampling
from tests.embedded import tokenizer
from tests.engine.cores import Heard, Session, request
from tests.engine.grammars import EOS, compiled, text_of

TOKENS = 160
WILD = {"sample": True, "temperature": 2.5}
WORD = {"type": "string", "maxLength": 6}
SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": {
        "type": "object",
        "properties": {"name": WORD, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "choices": {"enum": ["red", "green", 7, None, {"a": [1]}]},
    "list": {"type": "array", "items": {"anyOf": [{"type": "boolean"}, WORD]}, "minItems": 1, "maxItems": 4},
    "nested": {
        "type": "object",
        "properties": {
            "at": {"$ref": "#/$defs/point"},
            "of": {"type": "array", "maxItems": 2, "items": WORD},
        },
        "required": ["at"],
        "additionalProperties": False,
        "$defs": {
            "point": {
                "type": "object",
                "properties": {
                    "x": {"type": "integer"},
                    "label": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
                },
                "required": ["x", "label"],
                "additionalProperties": False,
            }
        },
    },
}
LONG: dict[str, Any] = {"type": "array", "items": {"type": "boolean"}, "minItems": 28, "maxItems": 32}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    session = started(max_batch_prefill_tokens=24)
    yield session
    session.close()


def started(**settings: int) -> Session:
    return Session(EngineConfig(model=ModelConfig(), threads=1, **settings))  # type: ignore[arg-type]


def schema_of(name: str) -> dict[str, Any]:
    return LONG if name == "long" else SCHEMAS[name]


def asked(name: str, seed: int, sentences: int = 4) -> CoreRequest:
    """Return a request for one of the schemas; four sentences are more than a step of the session takes."""
    prompt = tuple(
        tokenizer().encode(f"Write about number {seed}, please. " * sentences, add_special_tokens=False)
    )
    sampling = Sampling(seed=seed, **WILD)  # type: ignore[arg-type]
    grammar = compiled(schema_of(name))
    return request(f"{name} {seed}", prompt, tokens=TOKENS, sampling=sampling, grammar=grammar)


def check(heard: Heard, wanted: list[CoreRequest]) -> int:
    """Return how many texts came to their end, all of which must be valid."""
    ended = 0
    for each in wanted:
        outputs = heard.outputs[each.id]
        text = text_of([output.token_id for output in outputs if output.token_id not in EOS])
        if outputs[-1].finish is FinishReason.EOS:
            jsonschema.validate(json.loads(text), schema_of(each.id.split()[0]))
            ended += 1
        else:
            assert len(outputs) == TOKENS
    return ended


@pytest.mark.parametrize("name", SCHEMAS)
def test_alone(session: Session, name: str) -> None:
    wanted = [asked(name, seed) for seed in range(3)]
    heard = [session.run([each]) for each in wanted]
    ended = sum(check(each, [of]) for each, of in zip(heard, wanted, strict=True))
    assert ended >= 2


def test_in_one_batch_beside_free_texts_with_prompts_in_pieces(session: Session) -> None:
    wanted = [asked(name, seed) for seed in range(4) for name in SCHEMAS]
    free = [request(str(at), wanted[0].prompt_ids, sampling=Sampling(seed=at, **WILD)) for at in range(3)]  # type: ignore[arg-type]
    heard = session.run([*wanted, *free])
    assert check(heard, wanted) >= 0.8 * len(wanted)
    for each in wanted[:4]:
        assert heard.tokens(each.id) == session.run([each]).tokens(each.id)


def test_when_preempted(session: Session) -> None:
    wanted = [asked(name, seed, sentences=1) for seed in range(8) for name in ("flat", "nested")]
    long = [asked("long", seed, sentences=1) for seed in range(4)]
    tight = started(max_batch_total_tokens=192, max_total_tokens=192, max_batch_prefill_tokens=24)
    heard = tight.run([*wanted, *long])
    tight.close()
    # No two of the long ones fit beside each other, whoever waits for a mask; their last token is not kept
    assert all(2 * (len(each.prompt_ids) + len(heard.outputs[each.id]) - 1) > 192 for each in long)
    assert sum(stats.preempted for stats in heard.stats) > 0
    assert check(heard, wanted) >= 0.8 * len(wanted)
    check(heard, long)
