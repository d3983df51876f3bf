"""Whether a request's head is one that RFC 9112 allows, where llhttp lets more pass."""

from __future__ import annotations

import re
from collections.abc import Sequence

from handlers.http.errors import Failure

FRAMED = frozenset((b"host", b"transfer-encoding"))
# RFC 3986, 3.2.2: an address in brackets, or a name; and a port
HOST = re.compile(
    rb"(?:\[[0-9A-Za-z:._~%-]+\]|(?:[0-9A-Za-z._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?", re.ASCII
)
ABSOLUTE = re.compile(rb"https?://[^/?#]+([^#]*)", re.IGNORECASE)
LONGEST_TARGET = 65_535  # bytes: http_parser's offsets have 16 bits
SHOWN = 60  # bytes of what was given


def origin_form(target: bytes) -> bytes | None:
    """Return path and query of a request's target, which may be a whole URL; None if it has no path.

    RFC 9112, 3.2: a server must take URLs. The other forms are for proxies (CONNECT) and for `OPTIONS *`.
    """
    if target.startswith(b"/"):
        return target
    found = ABSOLUTE.fullmatch(target.partition(b"#")[0])
    if found is None:
        return None
    return found[1] if found[1].startswith(b"/") else b"/" + found[1]


def fault_of(version: str, headers: Sequence[tuple[bytes, bytes]]) -> Failure | None:
    """Return how a head is refused, None if it may be answered; `headers` have their names in lower case.

    Two readers of one request who differ in its host, or in where it ends, can be played off against each
    other: what leaves that open is refused (RFC 9112, 3.2, 6.1 and 11.2).
    """
    if version not in ("1.1", "1.0"):
        return _version_fault(version)
    framed = [header for header in headers if header[0] in FRAMED]
    hosts = [value.strip(b" \t") for name, value in framed if name == b"host"]  # llhttp leaves what follows
    if len(hosts) > 1:
        return _malformed(f"A request must have one Host header. Given: {len(hosts)}. Send one of them")
    if not hosts and version == "1.1":
        return _malformed("A request of HTTP/1.1 must have a Host header. Given: none. Send name and port")
    if hosts and HOST.fullmatch(hosts[0]) is None:
        given = _shown(hosts[0])
        return _malformed(f"The Host header must be a name or an address, and a port. Given: {given}")
    if len(framed) > len(hosts):
        return _coding_fault(version, [value for name, value in framed if name != b"host"])
    return None


def long_target(size: int, limit: int) -> Failure:
    """Return how a target is refused that is longer than any head may be, or than the parser takes."""
    most = min(limit, LONGEST_TARGET)
    return Failure(
        431,
        f"The request's path must be at most {most} bytes (`header_limit`, and never more than "
        f"{LONGEST_TARGET}). Given: {size} bytes. Send fewer",
        "validation",
    )


def target_fault(target: bytes) -> Failure:
    """Return how a target without a path is refused."""
    given = _shown(target)
    return _malformed(f"The request line must name a path, such as /health, or a URL. Given: {given}")


def _version_fault(version: str) -> Failure:
    if version == "0.9":  # what a line without a version is taken for
        return _malformed("The request line must end with a version. Given: none. Write HTTP/1.1")
    error = f"The version must be HTTP/1.1 or HTTP/1.0. Given: HTTP/{version}. Send one of these"
    return Failure(505, error, "validation")


def _coding_fault(version: str, codings: list[bytes]) -> Failure | None:
    if version == "1.0":
        return _malformed("`Transfer-Encoding` needs HTTP/1.1. Given: HTTP/1.0. Send `Content-Length`")
    if [coding.strip().lower() for coding in codings] == [b"chunked"]:
        return None
    given = b", ".join(codings)
    # Where the body ends is known if the last one is chunked (RFC 9112, 6.3), and what is in it isn't
    status = 501 if given.lower().rpartition(b",")[2].strip() == b"chunked" else 400
    error = f"`Transfer-Encoding` must be chunked. Given: {_shown(given)}. Send the body as it is"
    return Failure(status, error, "validation")


def _malformed(error: str) -> Failure:
    return Failure(400, error, "validation")


def _shown(value: bytes) -> str:
    text = value[:SHOWN].decode("latin-1")
    return f"{text}..." if len(value) > SHOWN else text
