from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from benchmarks.serving.servers import SERVERS, Dialect, Server
from benchmarks.serving.workloads import WORKLOADS
from handlers.settings.table import SETTINGS

FOLDER = Path("/folder")


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.label)
def test_a_row_is_complete(server: Server) -> None:
    for text in (server.command, *server.needs, *server.environment.values()):
        filled = server.filled(text, "llama-135m", FOLDER, 4000)
        assert not set("{}") & set(filled)
    assert "4000" in server.filled(server.command, "m", FOLDER, 4000)
    assert set(server.workloads) | set(server.larger) <= set(WORKLOADS)
    assert server.ours or server.install


def test_labels_differ() -> None:
    assert len(SERVERS) == len({server.label for server in SERVERS})


@pytest.mark.parametrize(
    "server", [server for server in SERVERS if server.ours], ids=lambda server: server.label
)
def test_our_own_flags_exist(server: Server) -> None:
    line = shlex.split(server.filled(server.command, "llama-135m", FOLDER, 4000))
    names = {name for setting in SETTINGS for name in setting.names}
    assert [] == [word for word in line if word.startswith("--") and word not in names]


def test_a_server_says_what_is_missing(tmp_path: Path) -> None:
    server = next(server for server in SERVERS if server.label == "llama.cpp f32")
    assert len(server.missing("llama-135m", tmp_path)) == 2
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "llama-135m-f32.gguf").touch()
    assert ["llama_build/bin/llama-server"] == server.missing("llama-135m", tmp_path)


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.label)
def test_every_server_is_told_the_length_in_its_own_way(server: Server) -> None:
    body = server.body("llama-135m", FOLDER, 7)
    assert (body["max_tokens"], body["temperature"], body["stream"]) == (7, 0, True)
    if server.dialect is Dialect.IGNORE_EOS:
        assert body["ignore_eos"]
        assert body["stream_options"] == {"include_usage": True}
    else:
        assert json.loads(body["generation_config"])["max_new_tokens"] == 7
