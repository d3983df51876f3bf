"""TGI's launcher by its name, where it isn't what `parley serve` is."""

from __future__ import annotations

import pytest

from handlers import cli


def test_the_launchers_env_flag_prints_the_environment_and_serves_as_tgis(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    run_command = cli._run

    def noting(program: str, command: str, flags: list[str]) -> int:
        ran.append(command)
        return run_command(program, command, flags) if command == "env" else 0

    monkeypatch.setattr(cli, "_run", noting)
    assert 0 == cli.launcher(["--env", "--port", "80"])
    assert "speaks TGI: 3.3" in capsys.readouterr().out
    assert ran == ["env", "serve"]
    assert 0 != cli.launcher(["--env", "--port", "x"])
    assert ran == ["env", "serve", "env"]
