"""The load of several replicas: whose turns are whose, what counts, and what the page says."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest

from benchmarks import fleet, report
from benchmarks.machine import about
from benchmarks.serving.running import running
from benchmarks.serving.servers import Group, Server
from tests.unit.benchmarks.test_serving import SCRIPT

MODEL = "model"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "toy.py").write_text(SCRIPT)
    (tmp_path / "models" / MODEL).mkdir(parents=True)
    (tmp_path / "models" / MODEL / "words.json").write_text(json.dumps({"words": [" one", " two"]}))
    for name, value in {
        **{"MODEL": MODEL, "REST_SECONDS": 0.0, "READING_SECONDS": (0.0, 0.0), "RESULTS": tmp_path},
        **{"CONVERSATIONS": 2, "TURNS": 3, "OPENING": 4, "SAID": 2, "SMALL": 2},
    }.items():
        monkeypatch.setattr(fleet, name, value)
    return tmp_path


def test_every_turn_brings_all_before_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[str] = []

    def turn(client: object, prompt: str) -> tuple[float, str]:
        prompts.append(prompt)
        return float(len(prompts)), "!"

    monkeypatch.setattr(fleet, "_turn", turn)
    firsts = fleet._conversation(1, "a", ["b", "c"], Random(0))
    assert (prompts, firsts) == (["ab", "ab!c"], [1.0, 2.0])


def test_later_turns_count_and_both_servers_are_asked_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[int, list[str]] = {}

    @contextmanager
    def both(where: Path, one: str, other: str):  # type: ignore[no-untyped-def]
        toy = Server(label="toy", group=Group.F32, command=f"{sys.executable} toy.py {{port}}")
        with ExitStack() as stack:
            yield [stack.enter_context(running(toy, MODEL, where, where / name)) for name in "ab"]

    def conversation(port: int, opening: str, said: list[str], random_: object) -> list[float]:
        asked.setdefault(port, []).append(opening + "|" + "".join(said))
        return [100.0, 0.25, 0.75]

    monkeypatch.setattr(fleet, "both", both)
    monkeypatch.setattr(fleet, "_conversation", conversation)
    assert fleet.affinity(folder, "--replicas 2", 2) == {"with_ms": 500.0, "without_ms": 500.0}
    one, other = asked.values()
    assert sorted(one) == sorted(other)
    assert len(set(one)) == 4


def test_the_page_says_what_was_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", folder)
    found = {
        **{"replicas": 2, "rounds": 3, "affinity": {"with_ms": 100.0, "without_ms": 450.0}},
        "gateway": {"through_ms": 5.0, "direct_ms": 2.0},
    }
    (folder / "fleet-here.json").write_text(json.dumps({**about(), **found}))
    text = "\n".join(report.page("here"))
    assert "after 450 ms (4.5 times as late)" in text
    assert "5.0 ms through the gateway, and 2.0" in text
