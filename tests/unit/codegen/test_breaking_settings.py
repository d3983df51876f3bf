"""Each rule on settings, seen on a change that is made in their table."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from codegen.breaking_settings import setting_changes
from codegen.settings_data import describe
from handlers.settings.row import Support, choice, decimal, integer, text
from handlers.settings.table import SETTINGS

OLD = describe(SETTINGS)
Edit = Callable[[Any], object]


def changes(edit: Edit) -> dict[str, str]:
    new = deepcopy(OLD)
    edit(new)
    return {change.key: change.level.name for change in setting_changes(OLD, new)}


def remade(attribute: str, **fields: Any) -> dict[str, str]:
    """Return what changes with a row of the server's own table."""
    rows = [replace(row, **fields) if row.attribute == attribute else row for row in SETTINGS]
    return {change.key: change.level.name for change in setting_changes(OLD, describe(rows))}


@pytest.mark.parametrize(
    ("edit", "key", "level"),
    [
        (lambda s: s.pop("max_n"), "setting-removed max_n", "MAJOR"),
        (lambda s: s.update(new=s["max_n"]), "setting-added new", "MINOR"),
        (
            lambda s: s["max_input_tokens"]["flags"].pop(),
            "setting-flag-removed max_input_tokens --max-input-length",
            "MAJOR",
        ),
        (lambda s: s["port"]["flags"].append("-P"), "setting-flag-added port -P", "MINOR"),
        (lambda s: s["port"]["variables"].remove("PORT"), "setting-variable-removed port PORT", "MAJOR"),
        (lambda s: s["max_n"]["variables"].append("N"), "setting-variable-added max_n N", "MINOR"),
        (lambda s: s["model_id"]["variables"].reverse(), "setting-order-changed model_id", "MAJOR"),
    ],
)
def test_a_change_of_names_is_found(edit: Edit, key: str, level: str) -> None:
    assert changes(edit) == {key: level}


@pytest.mark.parametrize(
    ("attribute", "fields", "key", "level"),
    [
        ("port", {"default": 8080}, "setting-default-changed port", "MAJOR"),
        ("payload_limit", {"unit": "kilobytes"}, "setting-unit-changed payload_limit", "MAJOR"),
        ("port", {"winning_env": ""}, "setting-winning-variable-changed port", "MAJOR"),
        ("api_key", {"empty_is_unset": True}, "setting-empty-changed api_key", "MAJOR"),
        ("max_n", {"exclusive": True}, "setting-exclusive-changed max_n", "MAJOR"),
        ("max_n", {"support": Support.ACCEPTED}, "setting-support-withdrawn max_n", "MAJOR"),
        ("rope_factor", {"support": Support.HONOURED}, "setting-support-added rope_factor", "MINOR"),
        ("rope_scaling", {"neutral": ("none",)}, "setting-neutral-added rope_scaling none", "MINOR"),
        ("device", {"parse": choice("auto", "cpu")}, "setting-choice-removed device cuda", "MAJOR"),
        (
            "device",
            {"parse": choice("auto", "cpu", "cuda", "xpu")},
            "setting-choice-added device xpu",
            "MINOR",
        ),
        ("port", {"parse": integer(1024, 65535)}, "setting-narrowed port minimum", "MAJOR"),
        ("port", {"parse": integer(0, 65535)}, "setting-widened port minimum", "MINOR"),
        ("max_n", {"parse": integer(1, 8)}, "setting-narrowed max_n maximum", "MAJOR"),
        (
            "watermark_gamma",
            {"parse": decimal(0, 1, above=True)},
            "setting-widened watermark_gamma maximum",
            "MINOR",
        ),
        (
            "watermark_delta",
            {"parse": decimal(0, 1000, above=True)},
            "setting-narrowed watermark_delta minimum",
            "MAJOR",
        ),
        (
            "worker_timeout",
            {"parse": decimal(1.5, 86_400)},
            "setting-narrowed worker_timeout zero",
            "MAJOR",
        ),
        (
            "template_timeout",
            {"parse": decimal(0.001, 86_400, zero=True)},
            "setting-widened template_timeout zero",
            "MINOR",
        ),
        ("log_level", {"parse": text}, "setting-value-changed log_level", "MAJOR"),
    ],
)
def test_a_change_of_meaning_is_found(attribute: str, fields: Any, key: str, level: str) -> None:
    found = remade(attribute, **fields)
    assert found.pop(key) == level
    assert set(found) <= {f"setting-variable-removed {attribute} AIP_HTTP_PORT"}


def test_what_no_version_could_do_may_not_be_refused_where_it_asks_for_nothing() -> None:
    old = deepcopy(OLD)
    old["rope_factor"]["neutral"] = ["1.0", "1"]
    assert {change.key: change.level.name for change in setting_changes(old, OLD)} == {
        "setting-neutral-removed rope_factor 1": "MAJOR"
    }


def test_a_zero_that_a_lower_bound_takes_as_well_is_not_lost() -> None:
    assert remade("worker_timeout", parse=decimal(0, 86_400)) == {
        "setting-widened worker_timeout minimum": "MINOR"
    }


def test_words_are_no_change() -> None:
    assert remade("port", help="other words", secret=True, metavar="N") == {}


def test_every_limit_of_the_table_is_told() -> None:
    assert OLD["watermark_gamma"]["value"] == {
        "kind": "decimal",
        "minimum": 0,
        "maximum": 1,
        "above": True,
        "below": True,
    }
    assert OLD["worker_timeout"]["value"] == {
        "kind": "decimal",
        "minimum": 1.5,
        "maximum": 86_400,
        "zero": True,
    }
    assert OLD["cpu_isa"]["value"]["choices"] == ["auto", "amx", "avx512", "avx2", "neon", "baseline"]
    assert OLD["prometheus_port"]["value"] == {"kind": "integer", "minimum": 1, "maximum": 65535}
    assert OLD["quantize"]["value"] == {
        "kind": "quantization",
        "refusal": "must be int8 or none, or what the model's files were quantised by: awq, gptq, marlin, "
        "compressed-tensors, fp8, bitsandbytes, bitsandbytes-nf4, bitsandbytes-fp4",
    }
