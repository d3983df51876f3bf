"""Schemas of the corpora served by the embedded model, which writes at random: only valid JSON comes out."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import jsonschema_rs
import pytest

from inference.config import EngineConfig
from inference.engine.engine import TorchCore
from inference.frontend.client import EngineClient
from inference.text.pipeline import load_text
from tests.examples import examples
from tests.structured.corpora import MISSING, Case, load, present
from tests.support import LiveServer, live_server, make_service

pytestmark = [pytest.mark.skipif(not present(), reason=MISSING), pytest.mark.slow]

WANTED = 200  # schemas served with a text that came to its end
ASKED = 480  # of the corpora's schemas, drawn at random
AT_ONCE = 8
TOKENS = 160


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    config = EngineConfig(max_concurrent_requests=AT_ONCE, threads=1)
    engine = EngineClient(TorchCore(config), config, lambda: load_text(config.model))
    with live_server(make_service(engine=engine)) as live:
        yield live


def test_schemas_at_random_sampling_give_only_valid_json(server: LiveServer) -> None:
    cases = list(load())
    random.Random(0).shuffle(cases)
    asked = cases[: examples(ASKED)]
    reasons: Counter[str] = Counter()
    wrong: list[str] = []
    with (
        httpx.Client(base_url=server.base_url, timeout=120) as client,
        ThreadPoolExecutor(AT_ONCE) as threads,
    ):
        for case, (reason, text) in zip(
            asked, threads.map(lambda case: ask(client, case), asked), strict=True
        ):
            reasons[reason] += 1
            if reason == "eos_token" and not is_valid(case, text):
                wrong.append(f"{case.name}: {text}")
    print(dict(reasons))
    assert wrong == []
    assert reasons["eos_token"] >= examples(WANTED)
    assert set(reasons) <= {"eos_token", "length", "refused"}


def ask(client: httpx.Client, case: Case) -> tuple[str, str]:
    """Return why the text for a schema ended, `refused` if there is none, and the text."""
    body = {
        "inputs": "JSON: ",
        "parameters": {
            "grammar": {"type": "json", "value": case.schema},
            "do_sample": True,
            "temperature": 1.2,
            "seed": len(case.name),
            "max_new_tokens": TOKENS,
            "details": True,
        },
    }
    answer = client.post("/generate", json=body)
    if answer.status_code == 422:
        assert answer.json()["error"].startswith("Input validation error: grammar is not valid: "), (
            answer.text
        )
        return "refused", ""
    assert answer.status_code == 200, answer.text
    return answer.json()["details"]["finish_reason"], answer.json()["generated_text"]


def is_valid(case: Case, text: str) -> bool:
    """Return whether a text is an instance of the schema, by a validator that reads ECMAScript's patterns."""
    return jsonschema_rs.validator_for(case.schema).is_valid(json.loads(text))
