"""Whom the server may ask for an image, because a client says so: a public host, or one that is named.

A server stands where its clients don't, and reaches what they can't: databases, neighbours, the cloud's
metadata. So what a name leads to is looked at, and not the name; see `connecting.py` for when.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

URL_CHARACTERS = 8192
PORTS = {"http": 80, "https": 443}
# urlsplit drops line breaks and tabs without a word; a backslash is a slash to browsers alone
BAD_CHARACTERS = re.compile(r"[\x00-\x20\x7f\\]")
UNESCAPED = "/%?#[]@!$&'()*+,;=:-._~|^`{}\""

GLOBAL_IPV6 = ipaddress.ip_network("2000::/3")  # all that is assigned as global unicast
TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # IPv4 addresses, as networks without IPv4 reach them
# Global by their registry, and yet no hosts of their own: what is in them leads elsewhere
ELSEWHERE = (
    ipaddress.ip_network("192.0.0.0/24"),
    ipaddress.ip_network("192.88.99.0/24"),
    ipaddress.ip_network("2001::/23"),  # Teredo, and other protocols
    ipaddress.ip_network("2002::/16"),  # 6to4: of an IPv4 address, maybe a private one
    ipaddress.ip_network("3fff::/20"),  # for documents
)

UNREACHED = "no connection to its host came about, or it broke off"
INSTEAD = "send the image itself, as data:image/png;base64,..., or have the host named in `image_hosts`"


class NotFetched(Exception):
    """An image isn't fetched; `str(error)` says why, in words for whoever named it."""


@dataclass(frozen=True, slots=True)
class Address:
    """An URL taken apart, checked for all but what its host leads to."""

    url: str
    scheme: str  # "http" or "https"
    host: str  # in lower case and ASCII; an IPv6 address without its brackets
    port: int
    target: str  # path and query


def to_address(url: str) -> Address:
    """Return what an URL says; raise NotFetched for one that isn't to be asked."""
    if len(url) > URL_CHARACTERS:
        raise NotFetched(f"its URL must have at most {URL_CHARACTERS} characters. Given: {len(url)}")
    if BAD_CHARACTERS.search(url):
        raise NotFetched("its URL has a space, a backslash or a control character: write them as %20, ...")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").encode("idna" if "[" not in parts.netloc else "ascii").decode()
    except ValueError:  # UnicodeError among them
        raise NotFetched("its URL can't be read") from None
    if parts.scheme not in PORTS:
        raise NotFetched("its URL must begin with http:// or https://")
    if "@" in parts.netloc:
        raise NotFetched("its URL has a user's name or password, which isn't sent: leave it out")
    if not host or port == 0:
        raise NotFetched("its URL names no host")
    target = quote(parts.path or "/", safe=UNESCAPED)
    if parts.query:
        target += "?" + quote(parts.query, safe=UNESCAPED)
    return Address(url, parts.scheme, host.lower(), port or PORTS[parts.scheme], target)


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts that may be asked."""

    named: tuple[str, ...] = ()  # as in `image_hosts`
    public: bool = True  # public ones, too

    def is_named(self, host: str, port: int) -> bool:
        """Return whether a host is one of those named, at its port there, or at those of http and https."""
        shown = f"[{host}]" if ":" in host else host
        for entry in self.named:
            name, port_given = _split(entry)
            fits = shown.endswith(name[1:]) if name.startswith("*.") else shown == name
            if fits and (port == port_given if port_given else port in PORTS.values()):
                return True
        return False

    def check(self, address: Address) -> None:
        """Raise NotFetched for a host that isn't asked, wherever it is."""
        if self.is_named(address.host, address.port):
            return
        if not self.public:
            raise NotFetched(f"its host is not one of `image_hosts`: {INSTEAD}")
        if address.port not in PORTS.values():
            raise NotFetched(f"its port is {address.port}, and neither 80 nor 443: {INSTEAD}")

    def allowed(self, host: str, port: int, addresses: Iterable[str]) -> list[str]:
        """Return the addresses of a host if all of them may be connected to; raise NotFetched if not.

        One that isn't public among others that are is what an attack looks like. An unknown host is told
        from a private one by nothing.
        """
        found = list(addresses)
        if not found or not (self.is_named(host, port) or all(map(is_public, found))):
            raise NotFetched(f"its host is not known, or not at a public address: {INSTEAD}")
        return found


def is_public(address: str) -> bool:
    """Return whether an IP address is one of a host on the public internet."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in TRANSLATED:
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
        if ip not in GLOBAL_IPV6:  # also IPv4 addresses written as IPv6, and those of one link
            return False
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in ELSEWHERE)


def _split(entry: str) -> tuple[str, int | None]:
    """Return the name and the port of an entry of `image_hosts`."""
    name, colon, port = entry.rpartition(":")
    if not colon or (name.startswith("[") and not name.endswith("]")):
        return entry, None
    return name, int(port)
