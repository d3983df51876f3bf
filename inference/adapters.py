"""Adapters as they cross the engine's boundaries: how they are numbered, asked for, and told of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PLACES = 2**16  # at once, at most
NONE = -1


@dataclass(frozen=True, slots=True)
class AdapterChange:
    """A wish to load an adapter while the model runs, or to unload one."""

    id: str
    name: str  # by which requests name it
    source: str | None = None  # a directory below the one that is allowed; None: it is to be unloaded
    replaces: bool = False  # one of this name that is there already


@dataclass(frozen=True, slots=True)
class AdapterChanged:
    """What became of a wish."""

    id: str
    refusal: str = ""  # "": it was granted
    missing: bool = False  # refused as there is no such adapter, or directory


@dataclass(frozen=True, slots=True)
class AdapterEdition:
    """The adapters that requests can name from now on; editions are counted."""

    number: int
    adapters: Mapping[str, int]  # their numbers by their names
    kept: Mapping[str, str]  # the directories of those that were loaded while the model ran


def place_of(number: int) -> int:
    """Return the place of an adapter; -1 for none.

    Places are given away again and numbers never are: what is known of one adapter is never taken for
    another's.
    """
    return number if number < 0 else number % PLACES
