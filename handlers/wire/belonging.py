"""Members of an object that go with some of its types, and would be ignored beside the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from inference.errors import InvalidInput, Member

Belongs = Mapping[str, Collection[str]]  # by the type: those of such members that it has


def refuse_others(given: Mapping[str, object], belongs: Belongs, kind: str, where: str) -> None:
    """Raise InvalidInput for a member that goes with other types; beside an unknown `kind` any may stand."""
    own = belongs.get(kind)
    if own is None:
        return
    others = dict.fromkeys(name for names in belongs.values() for name in names if name not in own)
    wrong = next((name for name in others if given.get(name) is not None), None)
    if wrong is not None:
        raise InvalidInput(Member(f"{where}.{wrong}"), f" does not go with the type {kind!r}: leave it out")
