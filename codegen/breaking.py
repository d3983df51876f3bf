"""The gate: what breaks what the last release promised must be announced, and the version must say it.

`python -m codegen breaking` compares; `python -m codegen release VERSION` makes today's contract the one that
is compared with. An announced change that isn't there fails, too: people would prepare for what doesn't come.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from codegen import announcements, baseline
from codegen.announcements import REASON, announced
from codegen.baseline import Contract
from codegen.change import Change, Level, Version, heaviest

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate found."""

    old: Version
    new: Version
    packaged: Version  # in pyproject.toml
    changes: Sequence[Change]
    unannounced: Sequence[Change]
    idle: Sequence[str]  # keys that are announced and don't happen

    @property
    def needed(self) -> Version:
        """Return the lowest version that these changes may come with."""
        return self.old.after(heaviest(self.changes))

    @property
    def problems(self) -> list[str]:
        """Return what is to be mended, a line each."""
        return list(self._problems())

    def _problems(self) -> Iterator[str]:
        if self.unannounced:
            yield f"take back, or announce in openapi/CHANGES.md, under '### {announcements.BREAKING}':"
            yield from (f"- `{change.key}`: {REASON}" for change in self.unannounced)
        for key in self.idle:
            yield f"announced in openapi/CHANGES.md, and not there: `{key}`: take it out, or make the change"
        if self.new < self.needed:
            yield f"info.version of openapi.yaml is {self.new}: these changes need {self.needed} or higher"
        if self.packaged != self.new:
            yield f"pyproject.toml says version {self.packaged}, openapi.yaml {self.new}: make them the same"


def judge(old: Contract, new: Contract, changes_text: str, packaged: str) -> Verdict:
    """Hold a new contract against an old one; AnnouncementError if the announcements can't be read."""
    changes, known = old.changes(new), announced(changes_text)
    breaking = {change.key: change for change in changes if change.level is Level.MAJOR}
    return Verdict(
        old=old.version,
        new=new.version,
        packaged=Version.parse(packaged),
        changes=changes,
        unannounced=[change for key, change in breaking.items() if key not in known],
        idle=[key for key in known if key not in breaking],
    )


def judge_today(folder: Path) -> Verdict:
    """Hold the tree against what a folder keeps."""
    return judge(Contract.read(folder), Contract.today(), _text(announcements.FILE), _packaged())


def release(version: str, folder: Path) -> list[str]:
    """Make today's contract the one to compare with; return what stands in the way, and do nothing then."""
    wanted, today = Version.parse(version), Contract.today()
    if today.version != wanted:
        return [f"openapi.yaml says version {today.version}: write {wanted} there and in pyproject.toml"]
    if (folder / baseline.OPENAPI).is_file():
        verdict = judge_today(folder)
        if verdict.problems or wanted <= verdict.old:
            return verdict.problems or [f"{verdict.old} is released: {wanted} isn't higher"]
    text = announcements.released(_text(announcements.FILE), version)
    baseline.keep(folder)
    announcements.FILE.write_text(text, encoding="utf-8")
    return []


def release_again(version: str, folder: Path) -> list[str]:
    """Keep today's contract for a version that is kept already and that nobody has got yet."""
    wanted, kept, today = Version.parse(version), Contract.read(folder).version, Contract.today().version
    if not wanted == kept == today:
        return [f"openapi/baseline is {kept}'s and openapi.yaml says {today}: only {kept} can be kept again"]
    if announced(_text(announcements.FILE)):
        return ["openapi/CHANGES.md announces changes since that version: take them into its own section"]
    baseline.keep(folder)
    return []


def _packaged() -> str:
    return str(tomllib.loads(_text(PROJECT))["project"]["version"])


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
