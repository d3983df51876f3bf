from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.serving.__main__ import Plan, measure
from benchmarks.serving.processes import tree
from benchmarks.serving.records import Key, WorkFile
from benchmarks.serving.servers import Group, Server
from benchmarks.serving.workloads import Workload
from tests.processes import command_line

SCRIPT = """
import json, subprocess, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
subprocess.Popen(["sleep", "300"])  # a child that would stay

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200); self.end_headers()
        for event in [{"choices": [{"text": "a"}]}] * body["max_tokens"]:
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")
        counts = {"completion_tokens": body["max_tokens"], "prompt_tokens": len(body["prompt"].split())}
        self.wfile.write(b"data: " + json.dumps({"usage": counts}).encode() + b"\\n\\ndata: [DONE]\\n\\n")
    def log_message(self, *arguments): pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
SMALL = Workload(name="c1", clients=2, requests=3, own=5, output=4)
KEY = Key("llama-135m", "toy")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "toy.py").write_text(SCRIPT)
    model = tmp_path / "models" / KEY.model
    model.mkdir(parents=True)
    (model / "words.json").write_text(json.dumps({"words": [" one", " two"]}))
    toy = Server(label="toy", group=Group.F32, command=f"{sys.executable} toy.py {{port}}", workloads=("c1",))
    return Plan(tmp_path, [KEY.model], [toy], [SMALL], 2, spare=0, rounds=1, budget=60, patience=0)


def children() -> list[str]:
    return [command_line(pid) for pid in tree(os.getpid())]


def test_a_server_is_started_measured_and_ended_with_its_children(plan: Plan, tmp_path: Path) -> None:
    work = WorkFile(tmp_path / "work.jsonl")
    measure(plan, work)
    results = work.results(KEY, "c1")
    assert [(result["requests"], result["failures"]) for result in results] == [(3, [])] * 2
    assert all(result["tokens_per_second"] > 0 and result["peak_mb"] > 1 for result in results)
    assert work.last(KEY, "start")["seconds"] > 0
    assert not [line for line in children() if "toy.py" in line or "sleep\x00300" in line]


def test_the_machines_limits_are_measured_before_and_after_our_own_server(plan: Plan, tmp_path: Path) -> None:
    found = iter([{"read_bytes": 1.0}, {"read_bytes": 2.0}])
    work = WorkFile(tmp_path / "work.jsonl")
    measure(replace(plan, repetitions=1, limits=lambda: next(found)), work)
    assert work.limits(KEY.model) == []
    ours = replace(
        plan.servers[0], label="parley toy", command=f"{sys.executable} {tmp_path}/toy.py {{port}}"
    )
    measure(replace(plan, servers=[ours], repetitions=1, limits=lambda: next(found)), work)
    assert work.limits(KEY.model) == [{"read_bytes": 1.0}, {"read_bytes": 2.0}]
    assert work.limits("another model") == []


def test_what_is_known_is_not_measured_again(plan: Plan, tmp_path: Path) -> None:
    work = WorkFile(tmp_path / "work.jsonl")
    measure(replace(plan, repetitions=1), work)
    (tmp_path / "toy.py").unlink()
    measure(replace(plan, repetitions=1), work)
    assert len(work.results(KEY, "c1")) == 1
    assert work.last(KEY, "failed") is None


def test_a_budget_that_is_spent_leaves_one_repetition(plan: Plan, tmp_path: Path) -> None:
    work = WorkFile(tmp_path / "work.jsonl")
    measure(replace(plan, budget=0), work)
    assert len(work.results(KEY, "c1")) == 1


def test_what_is_missing_or_does_not_start_is_told(plan: Plan, tmp_path: Path) -> None:
    work = WorkFile(tmp_path / "work.jsonl")
    toy = plan.servers[0]
    measure(replace(plan, servers=[replace(toy, needs=("venvs/toy",))]), work)
    assert work.last(KEY, "failed") == "missing: venvs/toy"
    measure(replace(plan, servers=[replace(toy, command=f"{sys.executable} -c 1/0")]), work)
    assert "ZeroDivisionError" in work.last(KEY, "failed")
