"""/metrics on a port of its own, for networks that keep scrapers away from the public one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6

from handlers.settings_table import SettingsError

TYPE = "text/plain; charset=utf-8"


@contextmanager
def metrics_port(hostname: str, port: int | None, render: Callable[[], bytes]) -> Iterator[int | None]:
    """Serve what `render` returns while the context lasts; gives the port, None without one.

    It has threads of its own, so that a scrape neither waits for the event loop nor holds it up. Raises
    SettingsError if the port can't be had.
    """
    if port is None:
        yield None
        return
    server = _listen(hostname, port, render)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hostname: str, port: int, render: Callable[[], bytes]) -> None:
        self.address_family = AF_INET6 if ":" in hostname else AF_INET
        self.render = render
        super().__init__((hostname, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30  # seconds; a scraper that falls silent doesn't keep its thread

    def do_GET(self) -> None:
        """Answer /metrics, and nothing else."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = self.server.render()
        self.send_response(HTTPStatus.OK)
        self.send_header("content-type", TYPE)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep scrapes out of the log."""


def _listen(hostname: str, port: int, render: Callable[[], bytes]) -> _Server:
    try:
        return _Server(hostname, port, render)
    except OSError as error:
        remedy = "choose another, or leave it out"
        raise SettingsError(
            f"`prometheus_port` {port} can't be bound on {hostname}: {error.strerror}; {remedy}"
        ) from error
