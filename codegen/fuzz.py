"""`python -m codegen fuzz`: a running server held against the contract, request by request."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import requests

import openapi
from codegen import fuzz_cases, fuzz_report, property_cases
from codegen.document import Document
from codegen.fuzz_cases import Asked
from codegen.fuzz_report import Findings
from codegen.fuzz_server import KEY, server
from codegen.property_contract import Promise, promises

PAGE = Path(__file__).parents[1] / "docs/fuzz.md"
WORKERS = 8  # requests at the same time
AHEAD = 200  # requests that are ready before they are sent
SHOW_SECONDS = 15.0
UNEXPECTED = (424, 429, 500, 503)  # the document has them, and nothing that is asked here calls for them
CHECKS = (
    "schemathesis: no undeclared status, media type or header; no answer of 500 or more; what was made\n"
    "  wrong is refused; other methods are refused with 405 and `Allow`",
    "a body that fits the document isn't refused for its shape, one that doesn't is refused with 422; what\n"
    "  is no JSON with 400, 413 or 415",
    "the body fits its schema and has no member besides; so does each event of a stream",
    "a stream has one end and it is the last: for TGI the event with the whole text, for OpenAI one\n"
    "  `finish_reason` for each choice, then `[DONE]`",
    "promised headers are there, `x-request-id` is given back, unknown members are named in\n"
    "  `x-ignored-parameters`",
    "the answer belongs to the request: a stream if one was asked for, as many choices, no more tokens than\n"
    "  allowed, details and usage where they were asked for",
    "no 424, 429, 500 or 503, and after the run the server is healthy",
)


@dataclass(slots=True)
class Run:
    """A run of fuzzing against one server."""

    url: str
    key: str | None
    promises: dict[str, Promise]
    findings: Findings = field(default_factory=Findings)
    waiting: queue.Queue[Asked | None] = field(default_factory=lambda: queue.Queue(AHEAD))

    def work(self) -> None:
        """Send requests until there are no more."""
        with requests.Session() as session:
            while (asked := self.waiting.get()) is not None:
                try:
                    self._send(asked, session)
                except Exception as error:  # a worker that ends would leave the others' queue standing
                    told = [f"can't be judged: {type(error).__name__}: {error}"]
                    self.findings.add(asked.operation, asked.source, 0, told, traceback.format_exc()[-2000:])

    def _send(self, asked: Asked, session: requests.Session) -> None:
        promise, case = self.promises[asked.operation], asked.case
        headers = {"x-request-id": f"fuzz-{case.id}"}
        if self.key is not None:
            headers["authorization"] = f"Bearer {self.key}"
        sent = f"{case.method} {case.formatted_path} {property_cases.body_of(case)!r}"[:2000]
        try:
            response = case.call(base_url=self.url, headers=headers, session=session)
        except requests.RequestException as error:
            self.findings.add(asked.operation, asked.source, 0, [f"no answer: {type(error).__name__}"], sent)
            return
        complaints = property_cases.case_problems(promise, case, response)
        if response.status_code in UNEXPECTED:
            complaints.append(f"answered with {response.status_code}")
        answer = f"{sent}\n    -> {response.status_code} {response.content[:500]!r}"
        self.findings.add(asked.operation, asked.source, response.status_code, complaints, answer)


def run(options: argparse.Namespace) -> int:
    """Fuzz, write docs/fuzz.md, and print what failed; 1 if anything did."""
    with _target(options) as (url, key):
        findings = fuzz(url, key, cases=options.cases, seed=options.seed, only=options.only, show=print)
        healthy = requests.get(f"{url}/health", timeout=60).status_code == 200
    if not healthy:
        findings.failures["the server isn't healthy after the run"] = [f"GET {url}/health"]
    print(fuzz_report.failures(findings))
    if not options.only:
        command = f"python -m codegen fuzz --cases {options.cases} --seed {options.seed}"
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        version = openapi.load()["info"]["version"]
        text = fuzz_report.page(findings, command=command, date=today, version=version, checks=CHECKS)
        PAGE.write_text(text, encoding="utf-8")
    return 1 if findings.failures else 0


def fuzz(
    url: str,
    key: str | None,
    *,
    cases: int,
    seed: int,
    only: list[str] | None = None,
    show: Callable[[str], None] = lambda text: None,
) -> Findings:
    """Ask a server `cases` times, and return what was found."""
    known = promises(Document.load())
    asked = {name: known[name] for name in only or known}
    operations = property_cases.operations(property_cases.load(openapi.load()))
    fuzzing = Run(url, key, asked)
    with _workers(fuzzing), _progress(fuzzing.findings, cases, show):
        for name, number in fuzz_cases.shares(asked, cases).items():
            fuzz_cases.ask(operations[name], asked[name], number, seed, fuzzing.waiting.put)
    return fuzzing.findings


@contextlib.contextmanager
def _workers(fuzzing: Run) -> Iterator[None]:
    threads = [threading.Thread(target=fuzzing.work, daemon=True) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for _ in threads:
            fuzzing.waiting.put(None)
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def _progress(findings: Findings, cases: int, show: Callable[[str], None]) -> Iterator[None]:
    ended = threading.Event()
    began = time.monotonic()

    def tell() -> None:
        while not ended.wait(SHOW_SECONDS):
            seconds = time.monotonic() - began
            show(f"{findings.cases.total()} of {cases} cases, {findings.failed} failures, {seconds:.0f} s")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def _target(options: argparse.Namespace) -> Iterator[tuple[str, str | None]]:
    if options.url:
        yield options.url.rstrip("/"), options.key
        return
    with server() as url:
        yield url, KEY
