"""What was measured, written after each row: a crash or a limit loses nothing."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import RESULTS

Row = dict[str, Any]

_LONGEST = 200  # letters of a value in a line


class Record:
    """The results of a run, in a file that is always whole.

    Parts that the file has from an earlier run on the same device stay until they are measured again.
    """

    def __init__(self, file: Path, about: Row) -> None:
        before = json.loads(file.read_text()) if file.exists() else {}
        same = before.get("gpu") == about.get("gpu")
        self.results: Row = {
            **about,
            "parts": before["parts"] if before and same else {},
            "missing": before["missing"] if before and same else {},
            "seconds": before.get("seconds", {}) if same else {},
            "notes": before.get("notes", {}) if same else {},  # that somebody has added, by part
        }
        self._file = file

    def begin(self, part: str) -> None:
        """Forget what is known of a part."""
        self.results["parts"].pop(part, None)
        self.results["missing"].pop(part, None)
        self.results["notes"].pop(part, None)

    def add(self, part: str, row: Row) -> None:
        """Keep a row, and print it."""
        self.results["parts"].setdefault(part, []).append(row)
        print(f"{part:16} {said(row)}", flush=True)
        self._write()

    def took(self, part: str, seconds: float) -> None:
        """Keep how long a part took."""
        self.results["seconds"][part] = round(seconds, 1)
        self._write()

    def miss(self, part: str, why: str) -> None:
        """Say that a part, or the rest of it, is missing."""
        self.results["missing"][part] = why
        print(f"{part:16} MISSING: {why}", flush=True)
        self._write()

    def _write(self) -> None:
        whole = json.dumps(self.results, indent=1) + "\n"
        beside = self._file.with_suffix(".partial")
        self._file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(whole)
        beside.replace(self._file)


def said(row: Row) -> str:
    """Return a row as a line; long texts are cut, and long nested values left out."""
    parts = [str(row.get("what", ""))]
    for name, value in row.items():
        text = f"{name}={value}"
        if name != "what" and (len(text) <= _LONGEST or isinstance(value, str)):
            parts.append(text[:_LONGEST])  # a level that isn't the best one says why, at length
    return " ".join(parts)


def about(device: torch.device) -> Row:
    """Return what the numbers depend on."""
    import transformers

    found: Row = {
        "device": device.type,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "day": time.strftime("%Y-%m-%d"),
    }
    if device.type == "cuda":
        import triton

        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "memory_gb": round(properties.total_memory / 1e9, 1),
            "processors": properties.multi_processor_count,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
        }
    return found


def results_file(device: torch.device) -> Path:
    """Return where the results of a device go if nobody says where."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return RESULTS / f"gpu-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.json"
