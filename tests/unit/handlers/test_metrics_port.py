"""The second port for /metrics."""

import urllib.error
import urllib.request

import pytest

from handlers.metrics_port import metrics_port
from handlers.settings_table import SettingsError


def test_the_port_answers_metrics_and_nothing_else() -> None:
    with metrics_port("127.0.0.1", 0, lambda: b"tgi_queue_size 0\n") as port:
        address = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(f"{address}/metrics", timeout=5) as answer:
            assert b"tgi_queue_size 0\n" == answer.read()
            assert "text/plain; charset=utf-8" == answer.headers["content-type"]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/generate", timeout=5)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{address}/metrics", timeout=5)


def test_without_a_port_nothing_listens() -> None:
    with metrics_port("127.0.0.1", None, bytes) as port:
        assert port is None


def test_a_port_in_use_is_refused_by_name() -> None:
    with (
        metrics_port("127.0.0.1", 0, bytes) as port,
        pytest.raises(SettingsError, match=f"`prometheus_port` {port} can't be bound on 127.0.0.1"),
        metrics_port("127.0.0.1", port, bytes),
    ):
        pass
