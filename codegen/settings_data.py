"""The table of settings as data: what a deployment can count on, for comparing one version with another."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from handlers.settings.row import Parse, Setting

NONSENSE = "\x00"  # every parser that doesn't take any text refuses it
LIMITS = ("choices", "minimum", "maximum", "above", "below", "zero")
ENDLESS = (2**63 - 1, float("inf"))


def describe(settings: Iterable[Setting[Any]]) -> dict[str, dict[str, Any]]:
    """Return each setting's promises by its name; the texts of help and reasons are none."""
    return {setting.attribute: _setting(setting) for setting in settings}


def _setting(setting: Setting[Any]) -> dict[str, Any]:
    rows: dict[str, Any] = {
        "flags": [*setting.names, *filter(None, [setting.short])],
        "variables": list(setting.variables),
        "default": setting.show(setting.default),
        "unit": setting.unit,
        "support": str(setting.support),
        "neutral": [setting.show(value) for value in setting.neutral],
        "exclusive": setting.exclusive,
        "empty_is_refused": not setting.empty_is_unset,
        "winning": setting.winning_env,
        "value": _value(setting.parse),
    }
    return {key: value for key, value in rows.items() if value not in ("", [], False)}


def _value(parse: Parse[Any]) -> dict[str, Any]:
    """Return what a parser takes: its kind, and what it was made with or says when it refuses."""
    kind = parse.__qualname__.partition(".")[0]
    made_with = inspect.getclosurevars(parse).nonlocals  # of `choice`, `integer` and `decimal`
    if made_with:
        limits = {key: _plain(made_with[key]) for key in LIMITS if key in made_with}
        told = {key: value for key, value in limits.items() if value is not False and value not in ENDLESS}
        return {"kind": kind, **told}
    try:
        parse(NONSENSE)
    except ValueError as refusal:
        return {"kind": kind, "refusal": str(refusal)}
    return {"kind": kind}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
