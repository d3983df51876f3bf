"""Numbers of every setting at their extremes: refused in words, or taken and working."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest

from codegen.settings_data import describe
from handlers.settings.row import Group, Setting, SettingsError, Support
from handlers.settings.table import SETTINGS, Settings
from tests.support import live_server, make_service
from tests.unit.handlers.settings.test_table import read_line

NUMBERS = {name: row["value"] for name, row in describe(SETTINGS).items() if "minimum" in row["value"]}
EXTREMES = (
    *("0", "-1", "-0", "0.0", "1e-400", "5e-324", "0.5", "1e18", "-1e18", "1e308", "1e400", "-1e400"),
    *(str(2**31), str(2**63 - 1), str(2**63), str(2**64), str(-(2**63)), "9" * 5000, "-" + "9" * 5000),
    *("nan", "-nan", "inf", "-inf", "infinity", "+-5", "--5", "5-", "0x10", "1,5", "five", "\u0664"),
)
ROWS = {row.attribute: row for row in SETTINGS}


def test_every_setting_that_is_a_number_has_both_bounds() -> None:
    numeric = {field.name for field in fields(Settings) if {"int", "float"} & {*str(field.type).split()}}
    assert numeric == NUMBERS.keys()
    # what is never used needs no bound of its own
    endless = {name for name, bounds in NUMBERS.items() if "maximum" not in bounds}
    assert all(ROWS[name].support is Support.ACCEPTED for name in endless)


@pytest.mark.parametrize("name", NUMBERS)
def test_an_extreme_value_is_refused_in_words_or_within_the_bounds(name: str) -> None:
    row = ROWS[name]
    for text in EXTREMES:
        try:
            value = getattr(read_line(**{row.variables[0]: text}).settings, name)
        except SettingsError as error:
            message = str(error)
            assert len(message) < 250
            if row.support is Support.LATER and "is not supported yet" in message:
                continue
            assert message.startswith(f"{row.variables[0]} must be "), message
            assert "; it is '" in message
            assert message.endswith(": change it, or unset it")
        else:
            assert value is None or math.isfinite(value)
            assert value == getattr(Settings(), name) or within(row, value), text


def within(row: Setting[Any], value: float) -> bool:
    bounds = NUMBERS[row.attribute]
    zero = row.attribute in ("step_timeout", "worker_timeout") and value == 0
    return zero or bounds["minimum"] <= value <= bounds.get("maximum", math.inf)


@pytest.mark.parametrize("sizes", ["-1", "1,0", "0,0", "65537", "1," * 1000 + "1", str(2**63), "nan", "1;2"])
def test_sizes_of_batches_are_bounded_in_size_and_number(sizes: str) -> None:
    with pytest.raises(SettingsError, match=r"CUDA_GRAPHS must be .*: change it, or unset it"):
        read_line(CUDA_GRAPHS=sizes)


def test_a_server_works_with_the_largest_numbers_that_are_taken() -> None:
    """Timers, counts and buckets: with a number more than they hold they would raise."""
    largest = {
        row.attribute: getattr(read_line(**{row.variables[0]: f"{bounds['maximum']:d}"}).settings, name)
        for name, bounds in NUMBERS.items()
        if (row := ROWS[name]).group in (Group.HTTP, Group.REQUEST)
        and isinstance(bounds.get("maximum"), int)
        and "below" not in bounds
        and name not in ("port", "prometheus_port", "api_workers", "replicas")
    }
    assert {"header_timeout", "keep_alive_seconds", "tokens_per_minute", "stream_buffer"} <= largest.keys()
    settings = replace(make_service().settings, **largest)
    body = {"inputs": "Hi", "parameters": {"max_new_tokens": 3}}
    with live_server(make_service(settings)) as live, live.client() as client:
        for path in ("/generate", "/generate_stream"):
            answer = client.post(path, json=body)
            assert answer.status_code == 200, answer.text
