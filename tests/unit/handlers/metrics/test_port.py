"""The second port for /metrics."""

import logging
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from socket import create_connection, socket

import pytest

from handlers.metrics import port as module
from handlers.metrics.port import MAX_CONNECTIONS, MAX_HEAD, metrics_port
from handlers.settings.row import SettingsError


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
    told = r"can't be bound on 127\.0\.0\.1: address already in use; choose another by --prometheus-port"
    with (
        metrics_port("127.0.0.1", 0, bytes) as port,
        pytest.raises(SettingsError, match=f"^`prometheus_port` {port} {told}"),
        metrics_port("127.0.0.1", port, bytes),
    ):
        pass


def answer(port: int | None, request: bytes) -> tuple[list[str], bytes]:
    """Return the lines of the head and the body of what comes back."""
    with connected(port) as client:
        client.sendall(request)
        head, _, body = b"".join(iter(lambda: client.recv(65_536), b"")).partition(b"\r\n\r\n")
    return head.decode().split("\r\n"), body


def connected(port: int | None) -> socket:
    assert port is not None
    return create_connection(("127.0.0.1", port), timeout=10)


ANSWERS = {
    b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n": ("200 OK", b"x 1\n"),
    b"GET /metrics?x HTTP/1.0\r\n\r\n": ("200 OK", b"x 1\n"),
    b"HEAD /metrics HTTP/1.1\r\n\r\n": ("200 OK", b""),
    b"GET / HTTP/1.1\r\n\r\n": ("404 Not Found", b"Not Found\n"),
    b"HEAD / HTTP/1.1\r\n\r\n": ("404 Not Found", b""),
    b"POST /metrics HTTP/1.1\r\n\r\n": ("405 Method Not Allowed", b"Method Not Allowed\n"),
    b"GET /metrics\r\n\r\n": ("400 Bad Request", b"Bad Request\n"),
    b"\x16\x03\x01\r\n\r\n": ("400 Bad Request", b"Bad Request\n"),
    b"GET /" + b"x" * (MAX_HEAD - 4): (
        "431 Request Header Fields Too Large",
        b"Request Header Fields Too Large\n",
    ),
}


def test_answers_are_short_and_say_nothing_of_the_server() -> None:
    with metrics_port("127.0.0.1", 0, lambda: b"x 1\n") as port:
        for request, (status, expected) in ANSWERS.items():
            head, body = answer(port, request)
            assert (head[0], body) == (f"HTTP/1.1 {status}", expected)
            names = {line.partition(":")[0] for line in head[1:]}
            assert names - {"allow"} == {"date", "content-type", "content-length", "connection"}
            assert ("allow" in names) == status.startswith("405")
        assert "content-length: 4" in answer(port, b"HEAD /metrics HTTP/1.1\r\n\r\n")[0]


def test_of_more_connections_than_there_is_room_for_each_is_closed_at_once() -> None:
    begun, going = threading.Semaphore(0), threading.Event()

    def render() -> bytes:
        begun.release()
        going.wait(30)
        return b"x 1\n"

    with metrics_port("127.0.0.1", 0, render) as port, ExitStack() as held:
        asking = [held.enter_context(connected(port)) for _ in range(MAX_CONNECTIONS)]
        for client in asking:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert all(begun.acquire(timeout=30) for _ in asking)
        with connected(port) as one_more:
            assert one_more.recv(1) == b""
        going.set()
        for client in asking:
            assert client.recv(8) == b"HTTP/1.1"
        assert any(closed_or_answered(port) for _ in range(500))


def test_connections_that_do_not_ask_keep_no_scrape_out() -> None:
    with metrics_port("127.0.0.1", 0, lambda: b"x 1\n") as port, ExitStack() as held:
        silent = [held.enter_context(connected(port)) for _ in range(MAX_CONNECTIONS)]
        silent[1].sendall(b"GET /metr")
        for _ in range(3):
            assert answer(port, b"GET /metrics HTTP/1.1\r\n\r\n")[1] == b"x 1\n"
        assert silent[0].recv(1) == b""  # the oldest
        silent[-1].sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert silent[-1].recv(8) == b"HTTP/1.1"


def closed_or_answered(port: int | None) -> bool:
    """Return whether a scrape was answered; waits a little if it wasn't."""
    try:
        return answer(port, b"GET /metrics HTTP/1.1\r\n\r\n")[1] == b"x 1\n"
    except ConnectionError:
        return False
    finally:
        time.sleep(0.01)


def test_a_request_that_drips_in_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.2)
    with metrics_port("127.0.0.1", 0, bytes) as port, connected(port) as client:
        client.settimeout(0.02)
        for _ in range(500):
            try:
                client.sendall(b"x")
                assert client.recv(1) == b""
                break
            except TimeoutError:
                continue  # still open
            except ConnectionError:
                break
        else:
            pytest.fail("the connection stayed open")


def test_a_fault_is_one_line_of_the_log_and_who_leaves_is_none(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken() -> bytes:
        raise ValueError("two\nlines")

    caplog.set_level(logging.INFO)
    with metrics_port("127.0.0.1", 0, broken) as port:
        assert answer(port, b"GET /metrics HTTP/1.1\r\n\r\n") == ([""], b"")
        assert answer(port, b"GET / HTTP/1.1\r\n\r\n")[1] == b"Not Found\n"
        connected(port).close()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["A connection of the metrics port has failed: ValueError('two\\nlines')"]
    assert capfd.readouterr().err == ""
