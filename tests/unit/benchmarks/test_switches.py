"""Two servers asked in turn: who is who, what counts, and what the page says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import report, switches
from benchmarks.serving.running import Running
from benchmarks.serving.servers import Group, Server
from benchmarks.serving.workloads import WORKLOADS, Workload
from benchmarks.switches import Round, Row, compare, write
from tests.unit.benchmarks.test_serving import SCRIPT

MODEL = "model"
ROW = Row("--x false", MODEL, "parley f32", "c1", 3, 1.25, Round(10.0, 5.0, 2.0), Round(8.0, 6.0, 3.0))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "toy.py").write_text(SCRIPT)
    (tmp_path / "models" / MODEL).mkdir(parents=True)
    (tmp_path / "models" / MODEL / "words.json").write_text(json.dumps({"words": [" one", " two"]}))
    monkeypatch.setattr(switches, "REST_SECONDS", 0.0)
    monkeypatch.setattr(switches, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    small = Workload(name="c1", clients=2, requests=3, own=4, output=3)
    monkeypatch.setitem(WORKLOADS, "c1", small)
    return tmp_path


def test_the_rows_are_of_the_server_with_the_flags_and_of_the_one_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = switches._ask

    def noted(server: Running, workload: Workload, prompts: list[str]) -> Round:
        asked.append(server.server.command)
        found = ask(server, workload, prompts)
        assert found.rate > 0
        return Round(10.0 if "--slow" in server.server.command else 20.0, found.first_ms, found.gap_ms)

    monkeypatch.setattr(switches, "_ask", noted)
    command = f"{sys.executable} toy.py {{port}}"
    toy = Server(label="toy", group=Group.F32, command=command)
    (row,) = compare(toy, "--slow", MODEL, folder, ["c1"], 3)
    assert (row.ratio, row.with_it.rate, row.without.rate, row.rounds) == (2.0, 20.0, 10.0, 3)
    slow = f"{command} --slow"
    assert asked == [command, slow, slow, command, command, slow]


def test_what_was_measured_of_others_stays_and_is_told(folder: Path) -> None:
    other = Row("--y false", MODEL, "parley f32", "c1", 3, 0.5, ROW.with_it, ROW.without)
    write([ROW, other])
    write([Row("--x false", MODEL, "parley f32", "c1", 5, 1.5, ROW.with_it, ROW.without)])
    (file,) = folder.glob("switches-*.json")
    assert {(row["off"], row["ratio"]) for row in json.loads(file.read_text())["rows"]} == {
        ("--x false", 1.5),
        ("--y false", 0.5),
    }
    text = "\n".join(report.page(file.stem.removeprefix("switches-")))
    assert "| `--x false` | model | parley f32 | c1 | 5 | 1.50 | 10.0 (5 / 2) | 8.0 (6 / 3) |" in text
