from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from inference.grammar_limits import GrammarLimits
from tests.structured.corpora import MISSING, Judge, Verdict, load, present, texts

pytestmark = [pytest.mark.skipif(not present(), reason=MISSING), pytest.mark.slow]

PLACELESS = {  # schemas in which no keyword is wrong by itself
    "jsts boolean_schema.json: boolean schema 'false'",
    "jsts enum.json: empty enum",
    "jsts not.json: forbid everything with boolean schema true",
    "jsts not.json: forbid everything with empty schema",
}
UNKNOWN_DRAFT = (  # such a schema is taken for one of the latest draft
    "jsts vocabulary.json: schema that uses custom metaschema with with no validation vocabulary: "
    "no validation: invalid number, but it still validates"
)
# Two of their objects list the same names in different orders, and one order is tried for both
UNTRIED_ORDERS = {
    f"maskbench {name}.json: llama 70b generated positive"
    for name in ("Github_hard---o91013", "MCPspec---CallToolResult", "MCPspec---GetPromptResult")
}


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    return asyncio.run(Judge().judge(load()))


def test_all_schemas_are_judged(verdict: Verdict) -> None:
    assert (verdict.compiled, len(verdict.refused)) == (1142, 325)


def test_no_invalid_instance_is_accepted(verdict: Verdict) -> None:
    assert verdict.wrong == []
    assert verdict.instances[False] > 1600


def test_valid_instances_are_accepted(verdict: Verdict) -> None:
    by_format = [label for label in verdict.lost if "is only an annotation by default" in label]
    assert set(verdict.lost) - set(by_format) == {UNKNOWN_DRAFT} | UNTRIED_ORDERS
    assert len(verdict.lost) < 0.01 * verdict.instances[True]  # formats are enforced, on purpose


def test_only_schemas_of_several_parts_want_another_order_than_their_author(verdict: Verdict) -> None:
    assert len(verdict.reordered) <= 10


def test_all_others_are_refused_with_the_place_and_what_to_do(verdict: Verdict) -> None:
    refusal = re.compile(r"grammar is not valid: `grammar\.value` at /\S.*: .{20,}", re.DOTALL)
    assert {name for name, message in verdict.refused.items() if not refusal.match(message)} == PLACELESS


def test_no_grammar_gives_up_in_a_text(verdict: Verdict) -> None:
    assert verdict.failures == []


def test_no_compilation_takes_longer_than_its_limit(verdict: Verdict) -> None:
    assert max(verdict.compile_work) < GrammarLimits().seconds


def test_instances_are_tried_in_the_orders_of_their_properties() -> None:
    schema: dict[str, Any] = {"items": {"properties": {"z": {}, "d": {"properties": {"b": {}}}, "c": {}}}}
    assert [*texts({"a": 1.0, "b": [{"c": 2, "d": 0.5}]}, schema, 5)] == [
        '{"a": 1, "b": [{"c": 2, "d": 0.5}]}',
        '{"b": [{"d": 0.5, "c": 2}], "a": 1}',
        '{"a": 1, "b": [{"c": 2, "d": 0.5}]}',
        '{"a": 1, "b": [{"d": 0.5, "c": 2}]}',
        '{"b": [{"c": 2, "d": 0.5}], "a": 1}',
    ]
