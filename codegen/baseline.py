"""openapi/baseline/: the contract of the last release, as it was; what a new version is held against."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openapi
from codegen.breaking_document import document_changes
from codegen.breaking_metrics import metric_changes
from codegen.breaking_settings import setting_changes
from codegen.change import Change, Version
from codegen.document import Document
from codegen.settings_data import describe
from handlers.settings.table import SETTINGS
from openapi.yamlload import parse

FOLDER = Path(__file__).parents[1] / "openapi/baseline"
OPENAPI, METRICS, SETTINGS_FILE = "openapi.yaml", "metrics.yaml", "settings.json"


@dataclass(frozen=True, slots=True)
class Contract:
    """All that a version promises."""

    document: Mapping[str, Any]
    metrics: Mapping[str, Any]
    settings: Mapping[str, Mapping[str, Any]]

    @property
    def version(self) -> Version:
        """Return the document's version."""
        return Version.parse(self.document["info"]["version"])

    @classmethod
    def today(cls) -> Contract:
        """Return what the tree promises."""
        return cls(openapi.load(), parse(openapi.text(METRICS)), describe(SETTINGS))

    @classmethod
    def read(cls, folder: Path) -> Contract:
        """Return what was kept in a folder; FileNotFoundError if something is missing."""
        document, metrics, settings = (
            parse((folder / name).read_text(encoding="utf-8")) for name in (OPENAPI, METRICS, SETTINGS_FILE)
        )
        return cls(document, metrics, settings)

    def changes(self, new: Contract) -> list[Change]:
        """Return what changes with a new version, the heaviest first."""
        found = [
            *document_changes(Document(self.document), Document(new.document)),
            *metric_changes(self.metrics, new.metrics),
            *setting_changes(self.settings, new.settings),
        ]
        return sorted(found, key=lambda change: (-change.level, change.key))


def keep(folder: Path) -> None:
    """Write what the tree promises into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (OPENAPI, METRICS):
        (folder / name).write_text(openapi.text(name), encoding="utf-8")
    settings = json.dumps(describe(SETTINGS), indent=1, ensure_ascii=False) + "\n"
    (folder / SETTINGS_FILE).write_text(settings, encoding="utf-8")
