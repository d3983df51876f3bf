"""Images fetched from a server of this machine, which is named; and hosts that aren't asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NoReturn

import httpcore
import pytest

from handlers.images.connecting import SIP, TRY_SECONDS, look_up
from handlers.images.fetching import PIECES, REDIRECTS, Fetcher, TooLarge
from handlers.images.hosts import Hosts, NotFetched
from tests.image_server import PIECES as SENT
from tests.image_server import RED, ImageServer

pytestmark = pytest.mark.anyio
MOST = 50_000


def fetcher(images: ImageServer, *, most: int = MOST) -> Fetcher:
    return Fetcher(Hosts((images.entry,), public=False), most)


async def fetched(fetcher: Fetcher, url: str) -> bytes:
    return await fetcher.fetch(url, lambda size: None)


async def reason(fetcher: Fetcher, url: str) -> str:
    with pytest.raises(NotFetched) as failure:
        await fetched(fetcher, url)
    return str(failure.value)


async def test_what_is_there_is_fetched_by_a_plain_request(images: ImageServer) -> None:
    assert await fetched(fetcher(images), images.url("/red.png")) == RED
    (head,) = images.heads
    assert head["host"] == f"127.0.0.1:{images.port}"
    assert (head["accept"], head["accept-encoding"]) == ("image/*", "identity")
    assert head["user-agent"].startswith("parley/")
    assert head.keys() == {"host", "accept", "accept-encoding", "user-agent"}  # nothing of the client


async def test_proxies_of_the_environment_are_not_asked(
    images: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert await fetched(fetcher(images), images.url("/red.png")) == RED


async def test_bytes_are_told_as_they_come(images: ImageServer) -> None:
    told: list[int] = []
    await fetcher(images, most=200_000).fetch(images.url("/large.png"), told.append)
    assert sum(told) == len(RED) + 100_000


async def test_image_in_crumbs_is_given_up_and_one_in_pieces_is_not(images: ImageServer) -> None:
    told: list[int] = []
    crumbs = fetcher(images).fetch(images.url("/pieces.png/2"), told.append)
    with pytest.raises(NotFetched, match=r"^its host sends it in too many small pieces$"):
        await crumbs
    assert len(told) < 2 * PIECES
    file = await fetched(fetcher(images, most=1_000_000), images.url("/pieces.png/300"))
    assert len(file) == len(RED) + SENT * 300


async def test_others_have_their_turn_between_a_few_of_the_answers_of_a_host(
    images: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    read = httpcore.AnyIOBackend.connect_tcp

    async def counted(self: httpcore.AnyIOBackend, *where: Any) -> httpcore.AsyncNetworkStream:
        stream = await read(self, *where)
        whole = stream.read

        async def noted(max_bytes: int, timeout: float | None = None) -> bytes:
            sizes.append(max_bytes)
            return await whole(max_bytes, timeout)

        monkeypatch.setattr(stream, "read", noted)
        return stream

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", counted)
    assert await fetched(fetcher(images), images.url("/early.png/2000")) == RED
    assert len(sizes) > 5
    assert max(sizes) == SIP
    told = await reason(fetcher(images), images.url("/early.png/100000"))
    assert told == "its host sends too much before its answer"


async def test_redirects_are_followed_a_few_times(images: ImageServer) -> None:
    assert await fetched(fetcher(images), images.url("/to//to//red.png")) == RED
    told = await reason(fetcher(images), images.url("/round"))
    assert told == f"its host redirects more than {REDIRECTS} times"
    assert images.asked["/round"] == REDIRECTS + 1


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("http://127.0.0.1:1/", "not one of `image_hosts`"),
        ("http://169.254.169.254/latest/meta-data/", "not one of `image_hosts`"),
        ("//localhost/", "not one of `image_hosts`"),
        ("file:///etc/passwd", "must begin with http:// or https://"),
        ("http://a:b@127.0.0.1/", "a user's name or password"),
        ("http://[::1/", "isn't an URL"),
    ],
)
async def test_where_a_redirect_leads_is_checked_as_well(
    location: str, told: str, images: ImageServer
) -> None:
    assert told in await reason(fetcher(images), images.url(f"/to/{location}"))


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/nothing", "its host answers with the status 404"),
        ("/zipped.png", "its host compresses it, which wasn't asked for"),
        ("/large.png", f"Image size 100012 bytes exceeds maximum allowed size of {MOST} bytes"),
    ],
)
async def test_an_answer_that_is_no_image_or_too_much_is_refused(
    path: str, told: str, images: ImageServer
) -> None:
    assert await reason(fetcher(images), images.url(path)) == told


async def test_a_stream_is_cut_as_soon_as_it_is_too_long(images: ImageServer) -> None:
    with pytest.raises(TooLarge):
        await fetched(fetcher(images), images.url("/endless.png"))


async def test_a_port_where_nobody_listens_is_told(images: ImageServer) -> None:
    closed = Fetcher(Hosts(("127.0.0.1:1",)), MOST)
    assert (await reason(closed, "http://127.0.0.1:1/")).startswith("no connection to its host")
    assert "no connection" in await reason(fetcher(images), f"https://127.0.0.1:{images.port}/")  # no TLS


# --- names and what they lead to ---------------------------------------------------------------


class Names:
    """A name server whose answers to the same question differ, as those of an attacker's do."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        return self._answers[min(len(self.asked), len(self._answers)) - 1]


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let no connection come about; return where there would have been one."""
    tried: list[str] = []

    async def connect(
        self: object,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> NoReturn:
        tried.append(f"{host} {port}")
        raise httpcore.ConnectError("no network here")

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect)
    return tried


async def test_the_connection_goes_to_the_very_address_that_was_checked(connected: list[str]) -> None:
    names = Names(["93.184.216.34", "2606:4700::1"], ["127.0.0.1"])
    await reason(Fetcher(Hosts(), MOST, names), "https://example.com/cat.png")
    assert names.asked == [("example.com", 443)]  # once: there is no second answer that could be another
    assert connected == ["93.184.216.34 443", "2606:4700::1 443"]


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["10.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["::1"], []]
)
async def test_a_name_that_leads_inside_is_not_connected_to(
    addresses: list[str], connected: list[str]
) -> None:
    told = await reason(Fetcher(Hosts(), MOST, Names(addresses)), "http://example.com/cat.png")
    assert told.startswith("its host is not known, or not at a public address")
    assert connected == []


async def test_a_name_that_leads_elsewhere_after_a_redirect_is_not_followed_there(
    images: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = httpcore.AnyIOBackend.connect_tcp

    async def of_this_machine(self: httpcore.AnyIOBackend, host: str, port: int, *more: Any) -> Any:
        assert (host, port) == ("93.184.216.34", 80)
        return await connect(self, "127.0.0.1", images.port, *more)

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", of_this_machine)
    names = Names(["93.184.216.34"], ["127.0.0.1"])
    url = "http://example.com/to/http://example.com/red.png"
    told = await reason(Fetcher(Hosts(), MOST, names), url)
    assert told.startswith("its host is not known, or not at a public address")
    assert list(images.asked) == ["/to/http://example.com/red.png"]


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "0x7f000001", "2130706433", "0177.0.0.1", "127.1", "0", "[::1]", "[::]"],
)
async def test_this_machine_is_not_asked_however_it_is_written(host: str, connected: list[str]) -> None:
    told = await reason(Fetcher(Hosts(), MOST), f"http://{host}/")
    assert told.startswith("its host is not known, or not at a public address")
    assert connected == []


async def test_a_look_up_that_takes_long_holds_up_nobody(
    images: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, done = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(host: str, port: int) -> list[str]:
        loop.call_soon_threadsafe(waiting.set)
        asyncio.run_coroutine_threadsafe(done.wait(), loop).result()
        return look_up(host, port)

    monkeypatch.setattr("handlers.images.connecting.look_up", slow)
    job = asyncio.create_task(fetched(fetcher(images), images.url("/red.png")))
    await waiting.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    done.set()
    assert images.asked == {}


async def test_an_address_that_does_not_answer_keeps_nobody_from_the_next(
    images: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, waited = httpcore.AnyIOBackend.connect_tcp, []

    async def of_this_machine(
        self: httpcore.AnyIOBackend, host: str, port: int, timeout: float | None = None, *more: Any
    ) -> Any:
        waited.append((host, timeout))
        if host != "93.184.216.34":
            raise httpcore.ConnectTimeout("its packets are dropped")
        return await connect(self, "127.0.0.1", images.port, timeout, *more)

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", of_this_machine)
    names = Names(["2606:4700::1", "93.184.216.34"])
    assert await fetched(Fetcher(Hosts(), MOST, names), "http://example.com/red.png") == RED
    assert waited == [("2606:4700::1", TRY_SECONDS), ("93.184.216.34", None)]
