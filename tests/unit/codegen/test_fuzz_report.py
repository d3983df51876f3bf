"""The page and the list that a fuzzing run ends with say what was counted."""

from __future__ import annotations

from codegen.fuzz_report import Findings, failures, page


def test_the_page_counts_cases_by_operation_and_status() -> None:
    findings = Findings()
    findings.add("generate", "borders", 200, [], "a")
    findings.add("generate", "drawn", 422, [], "b")
    findings.add("ping", "borders", 200, [], "c")
    text = page(findings, command="fuzz it", date="2026-01-02", version="1.2.3", checks=["all of it"])
    assert "3 cases (2 borders, 1 drawn) on 2026-01-02, version 1.2.3:\n**0 failures**, 0 answers" in text
    assert "| `generate` | 2 | 1 | 1 | 0 | 200: 1, 422: 1 |" in text
    assert "| **all** | 3 | 2 | 1 | 0 | 200: 2, 422: 1 |" in text
    assert "* all of it" in text


def test_failures_are_told_with_the_first_request_of_each_kind() -> None:
    findings = Findings()
    for asked in ("first", "second"):
        findings.add("generate", "drawn", 500, ["broken"], asked)
    text = failures(findings)
    assert "2 x generate: broken\n    first" in text
    assert "second" not in text
    assert text.endswith("2 failures in 2 cases")
    assert findings.failed == 2
