"""A hub of models on this machine's loopback, as much of it as a download asks for."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c" * 40
PIECES = 8  # in which a file comes


class FakeHub(ThreadingHTTPServer):
    """Has one repository, `org/name`, whose every file takes `seconds` to come."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes], seconds: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.seconds = seconds
        self.lists = True  # it says what sizes the files have
        self.breaks: str | None = None  # a file of which it sends the first half alone

    @property
    def address(self) -> str:
        """Return what HF_ENDPOINT is set to."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that leave."""


class Handler(BaseHTTPRequestHandler):
    """Answers by the path."""

    protocol_version = "HTTP/1.1"
    server: FakeHub

    def do_HEAD(self) -> None:
        """Say what a file is like."""
        name = self.path.rpartition(f"/resolve/{COMMIT}/")[2]
        content = self.server.files.get(name)
        if content is None:
            self.send_error(404)
            return
        self._begin(len(content), name)

    def do_GET(self) -> None:
        """Send a file, or what there is."""
        path, _, query = self.path.partition("?")
        if "/resolve/" in path:
            self._send_file(path.rpartition(f"/resolve/{COMMIT}/")[2])
        elif "/tree/" in path:
            files = self.server.files.items()
            self._send_json(
                [{"type": "file", "path": name, "size": len(data), "oid": blob(data)} for name, data in files]
            )
        elif "blobs" in query and not self.server.lists:
            self.send_error(500)
        else:
            siblings = [
                {"rfilename": name, "size": len(data), "blobId": blob(data)}
                for name, data in self.server.files.items()
            ]
            self._send_json({"id": "org/name", "sha": COMMIT, "siblings": siblings})

    def _send_file(self, name: str) -> None:
        content = self.server.files[name]
        self._begin(len(content), name)
        step = -(-len(content) // PIECES)
        for place in range(0, len(content), step):
            if name == self.server.breaks and place > len(content) // 2:
                self.close_connection = True
                return
            self.wfile.write(content[place : place + step])
            time.sleep(self.server.seconds / PIECES)

    def _send_json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self._begin(len(body))
        self.wfile.write(body)

    def _begin(self, length: int, file: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        if file:
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{blob(self.server.files[file])}"')
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def blob(content: bytes) -> str:
    """Return the name that a content has."""
    return hashlib.sha1(content).hexdigest()


@contextlib.contextmanager
def fake_hub(files: dict[str, bytes], seconds: float = 0.0) -> Iterator[FakeHub]:
    """Serve such a hub for as long as the context lasts."""
    hub = FakeHub(files, seconds)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
