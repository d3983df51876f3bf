"""A server of images, good and bad, on this machine's loopback."""

from __future__ import annotations

import contextlib
import gzip
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RED = b"\x89PNG\r\n\x1a\n\0red"  # as it seems, which is all that a fake engine looks at
BLUE = b"\x89PNG\r\n\x1a\n\0blue"
DRIP_SECONDS = 0.05
PIECES = 2000
DRIPS = 400  # until whoever reads is given up


class ImageServer(ThreadingHTTPServer):
    """Counts what it is asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: Counter[str] = Counter()
        self.heads: list[dict[str, str]] = []
        self.broken_off = threading.Event()  # whoever read a slow answer has gone

    @property
    def port(self) -> int:
        """Return the port that it listens on."""
        return int(self.server_address[1])

    @property
    def entry(self) -> str:
        """Return what `image_hosts` has for it."""
        return f"127.0.0.1:{self.port}"

    def url(self, path: str) -> str:
        """Return the address of a path."""
        return f"http://127.0.0.1:{self.port}{path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that leave."""


class Handler(BaseHTTPRequestHandler):
    """Answers by the path."""

    server: ImageServer

    def do_GET(self) -> None:
        """Answer."""
        self.server.asked[self.path] += 1
        self.server.heads.append({name.lower(): value for name, value in self.headers.items()})
        name = self.path.strip("/").partition("/")[0].partition("?")[0]
        answers: dict[str, Callable[[], None]] = {
            "red.png": lambda: self._send(RED),
            "blue.png": lambda: self._send(BLUE),
            "page.html": lambda: self._send(b"<html>", media_type="text/html"),
            "zipped.png": lambda: self._send(gzip.compress(RED), ("content-encoding", "gzip")),
            "large.png": lambda: self._send(RED + bytes(100_000)),
            "endless.png": self._stream_without_end,
            "drip.png": self._drip,
            "early.png": lambda: self._answer_too_early(int(self.path.rpartition("/")[2])),
            "pieces.png": lambda: self._in_pieces(int(self.path.rpartition("/")[2])),
            "to": lambda: self._redirect(self.path.removeprefix("/to/")),
            "round": lambda: self._redirect(self.path),
        }
        answers.get(name, lambda: self.send_error(404))()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _send(self, body: bytes, *headers: tuple[str, str], media_type: str = "image/png") -> None:
        self.send_response(200)
        for name, value in (("content-type", media_type), ("content-length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _redirect(self, location: str) -> None:
        self.send_response(302)
        self.send_header("location", location)
        self.send_header("content-length", "0")
        self.end_headers()

    def _stream_without_end(self) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(RED)
            for _ in range(DRIPS):
                self.wfile.write(bytes(65_536))

    def _answer_too_early(self, times: int) -> None:
        """Say so many times that the request is worked on, before the file."""
        with contextlib.suppress(OSError):
            self.wfile.write(b"HTTP/1.1 102 \r\n\r\n" * times)
            self._send(RED)

    def _in_pieces(self, size: int) -> None:
        """Send a file in chunks of so many bytes, all of them at once."""
        self.protocol_version = "HTTP/1.1"
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            for part in (RED, *[bytes(size)] * PIECES):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def _drip(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "1000000")
        self.end_headers()
        try:
            for _ in range(DRIPS):
                self.wfile.write(b"\x89")
                time.sleep(DRIP_SECONDS)
        except OSError:
            self.server.broken_off.set()


@contextlib.contextmanager
def image_server() -> Iterator[ImageServer]:
    """Serve images until the block ends."""
    with ImageServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.02], name="images", daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
