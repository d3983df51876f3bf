"""`text-generation-server`: lines that images of TGI have, as far as something answers to them here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from handlers import cli, commands, tgi_server
from handlers.settings.reading import Reading


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Reading]:
    """Return what is asked for, in place of downloading it."""
    asked: list[Reading] = []

    def download(reading: Reading) -> int:
        asked.append(reading)
        return 0

    monkeypatch.setattr(commands, "download_weights", download)
    return asked


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (["org/model"], {}),
        (["org/model", "--revision", "v1"], {"revision": "v1"}),
        (["--trust-remote-code", "org/model"], {"trust_remote_code": True}),
        (["org/model", "--no-trust-remote-code"], {"trust_remote_code": False}),
        (
            ["org/model", *"--extension .safetensors --auto-convert --no-merge-lora --json-output".split()],
            {"json_output": True},
        ),
        (
            ["org/model", "--no-auto-convert", "--logger-level", "INFO", "--no-json-output"],
            {"json_output": False},
        ),
    ],
)
def test_a_line_of_tgi_downloads_the_model(
    line: Sequence[str], wanted: dict[str, Any], asked: list[Reading]
) -> None:
    assert 0 == tgi_server.main(["download-weights", *line])
    (reading,) = asked
    assert reading.settings.model_id == "org/model"
    assert {name: getattr(reading.settings, name) for name in wanted} == wanted


def test_options_without_effect_are_told(asked: list[Reading], capsys: pytest.CaptureFixture[str]) -> None:
    line = ["download-weights", "org/model"]
    assert 0 == tgi_server.main([*line, "--no-auto-convert"])
    assert not capsys.readouterr().err
    assert 0 == tgi_server.main([*line, "--auto-convert", "--logger-level", "INFO"])
    told = capsys.readouterr().err
    assert "--auto-convert has no effect" in told
    assert "--logger-level has no effect" in told
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["serve", "org/model", "--sharded"], "text-generation-launcher serves the model"),
        (["quantize", "org/model", "out"], "--quantize int8"),
        (["upload-weights"], "there is no command 'upload-weights'"),
        (
            ["download-weights", "org/model", "--extension", ".bin"],
            "--extension must be .safetensors, not .bin",
        ),
        (["download-weights", "org/model", "--merge-lora"], "--lora-adapters serves adapters"),
        (["download-weights", "org/model", "--bin"], "there is no flag --bin"),
    ],
)
def test_what_nothing_answers_to_is_refused_with_what_to_do(
    line: Sequence[str], said: str, asked: list[Reading], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.MISUSED == tgi_server.main(line)
    assert said in capsys.readouterr().err
    assert not asked


@pytest.mark.parametrize("line", [[], ["--help"]])
def test_help_says_what_there_is(line: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == tgi_server.main(line)
    assert "download-weights MODEL" in capsys.readouterr().out
