"""What workers do that a staff hires."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from handlers.serving import staff as staff_module
from tests.unit.handlers.serving.office import ROOT, WORKER


@pytest.fixture
def doing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what sets the deed of all workers that start from then on."""

    def set_deed(deed: str) -> None:
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + WORKER.format(deed=deed)
        monkeypatch.setattr(staff_module, "command", lambda line: [sys.executable, "-c", code, str(line)])

    set_deed("")
    return set_deed
