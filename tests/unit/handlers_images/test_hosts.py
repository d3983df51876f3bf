"""Which hosts may be asked for images: what an address leads to is looked at, however it is written."""

from __future__ import annotations

import pytest

from handlers.images.hosts import Address, Hosts, NotFetched, is_public, to_address

PUBLIC = ("8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e")
NOT_PUBLIC = (
    *("127.0.0.1", "127.255.255.254", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "192.0.0.8", "192.0.2.1", "198.18.0.1", "203.0.113.9", "224.0.0.1"),
    *("239.255.255.250", "240.0.0.1", "255.255.255.255", "192.88.99.1"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12:3456::1", "ff02::1", "2001:db8::1", "3fff::1"),
    *("::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "::ffff:0:7f00:1"),  # IPv4 in IPv6
    *("2002:7f00:1::", "2001:0:7f00:1::", "64:ff9b::7f00:1", "64:ff9b::10.0.0.1", "64:ff9b:1::1"),
    *("", "localhost", "1.2.3", "0x7f000001"),
)


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_of_anywhere_else_is_not(address: str) -> None:
    assert not is_public(address)


def test_a_public_host_behind_a_translator_is_public() -> None:
    assert is_public("64:ff9b::8.8.8.8")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://Example.COM/a.png", ("https", "example.com", 443, "/a.png")),
        ("HTTP://example.com", ("http", "example.com", 80, "/")),
        ("http://example.com:8080?a=b#c", ("http", "example.com", 8080, "/?a=b")),
        ("https://bücher.example/ä.png", ("https", "xn--bcher-kva.example", 443, "/%C3%A4.png")),
        ("https://[2606:4700::1]/%20x", ("https", "2606:4700::1", 443, "/%20x")),
        ("https://example.com/x?sig=a%2Fb&t=1", ("https", "example.com", 443, "/x?sig=a%2Fb&t=1")),
    ],
)
def test_an_url_is_taken_apart(url: str, expected: tuple[str, str, int, str]) -> None:
    assert Address(url, *expected) == to_address(url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://example.com/a", "must begin with http:// or https://"),
        ("file:///etc/passwd", "must begin with"),
        ("https://user:pass@example.com/", "a user's name or password"),
        ("https://example.com@127.0.0.1/", "a user's name or password"),
        ("https://@127.0.0.1/", "a user's name or password"),
        ("https:///a.png", "names no host"),
        ("https://example.com:0/", "names no host"),
        ("https://example.com:99999/", "can't be read"),
        ("https://[::1/", "can't be read"),
        ("https://exa mple.com/", "has a space"),
        ("https://example.com\\@127.0.0.1/", "a backslash"),
        ("https://example.com/\r\nHost: x", "control character"),
        ("https://example.com/" + "x" * 8192, "at most 8192 characters"),
        ("https://" + "x" * 70 + ".com/", "can't be read"),
    ],
)
def test_an_url_that_two_readers_could_understand_differently_is_refused(url: str, reason: str) -> None:
    with pytest.raises(NotFetched, match=reason):
        to_address(url)


HOSTS = Hosts(("minio.internal:9000", "*.example.org", "10.0.0.5", "[fd00::5]:9000"))


@pytest.mark.parametrize(
    ("host", "port", "named"),
    [
        ("minio.internal", 9000, True),
        ("minio.internal", 80, False),
        ("x.minio.internal", 9000, False),
        ("a.example.org", 443, True),
        ("a.b.example.org", 80, True),
        ("a.example.org", 8080, False),
        ("example.org", 443, False),
        ("evilexample.org", 443, False),
        ("10.0.0.5", 80, True),
        ("10.0.0.50", 80, False),
        ("fd00::5", 9000, True),
        ("fd00::5", 443, False),
    ],
)
def test_a_host_is_named_with_its_port(host: str, port: int, named: bool) -> None:
    assert HOSTS.is_named(host, port) is named


def test_all_addresses_of_a_host_must_be_public() -> None:
    assert HOSTS.allowed("example.com", 443, ["8.8.8.8", "1.1.1.1"]) == ["8.8.8.8", "1.1.1.1"]
    for addresses in (["8.8.8.8", "10.0.0.1"], ["127.0.0.1"], []):
        with pytest.raises(NotFetched) as refusal:
            HOSTS.allowed("example.com", 443, addresses)
        assert str(refusal.value).startswith("its host is not known, or not at a public address: ")


def test_a_named_host_may_be_anywhere() -> None:
    assert HOSTS.allowed("minio.internal", 9000, ["10.0.0.1"]) == ["10.0.0.1"]


def test_other_ports_and_without_the_public_other_hosts_are_refused() -> None:
    HOSTS.check(to_address("http://example.com/"))
    with pytest.raises(NotFetched, match="its port is 22, and neither 80 nor 443"):
        HOSTS.check(to_address("http://example.com:22/"))
    with pytest.raises(NotFetched, match="not one of `image_hosts`"):
        Hosts(("a",), public=False).check(to_address("http://example.com/"))
