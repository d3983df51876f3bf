"""Switches of a command that takes a MODEL: what stands behind one is its value only if it is one."""

from __future__ import annotations

import pytest

from handlers import cli


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--trust-remote-code org/model", "--trust-remote-code=true org/model"),
        ("org/model --trust-remote-code", "org/model --trust-remote-code"),
        ("--trust-remote-code false org/model", "--trust-remote-code false org/model"),
        ("--trust-remote-code --revision main m", "--trust-remote-code --revision main m"),
        ("--revision main --json-output m", "--revision main --json-output=true m"),
    ],
)
def test_a_switch_leaves_the_model_behind_it_alone(line: str, expected: str) -> None:
    assert expected.split() == cli.with_lone_switches(line.split())


def test_a_model_may_stand_behind_a_switch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODEL_ID", raising=False)
    assert 1 == cli.main(["download-weights", "--trust-remote-code", "/no/such/model"])
    assert "/no/such/model" in capsys.readouterr().err
    assert 2 == cli.main(["serve", "--trust-remote-code", "org/model"])
    assert "--trust-remote-code must be true, 1, false or 0" in capsys.readouterr().err
