"""Stands in for what the engine's own process needs of packages that a machine with a GPU may lack.

Of all of msgspec the engine uses one base class; here it makes dataclasses. Imported first, also by
`python -m pytest -p benchmarks.gpu.absent`, it changes nothing where msgspec is installed.
"""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType


class Struct:
    """A class of members, made by keywords or in their order."""

    def __init_subclass__(cls, *, frozen: bool = False, array_like: bool = False, gc: bool = True) -> None:
        """Take msgspec's options; a frozen dataclass would be made in three times the time."""
        dataclasses.dataclass(cls)


def stand_in() -> None:
    """Put the class where msgspec's is looked for, unless msgspec is there."""
    try:
        import msgspec  # noqa: F401
    except ImportError:
        module = ModuleType("msgspec")
        module.__dict__["Struct"] = Struct
        sys.modules["msgspec"] = module


stand_in()
