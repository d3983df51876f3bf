"""Where the model sees, a client names what the server fetches: never from inside, never without an end."""

from __future__ import annotations

import asyncio
import base64
import io
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest

from handlers.app import create_app
from handlers.images.fetching import Fetcher
from handlers.images.hosts import Hosts
from handlers.service import Service
from handlers.serving import logs
from handlers.settings.table import Settings
from inference.fakes.core import fake_client
from inference.fakes.vision import FAKE_VISION
from tests.image_server import RED, ImageServer, image_server
from tests.support import LiveServer, live_server, logging_kept, make_service, serving

OUTSIDE = "http://93.184.216.34/cat.png"
INSIDE = [
    "http://169.254.169.254/latest/meta-data/",
    "http://[fd00:ec2::254]/latest/meta-data/",
    "http://metadata/",
    "http://127.0.0.1/",
    "http://127.0.0.1:3000/metrics",
    "http://localhost/",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://0x7f000001/",
    "http://2130706433/",
    "http://127.1/",
    "http://0/",
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://93.184.216.34:22/",
    "http://93.184.216.34@127.0.0.1/",
    "file:///etc/passwd",
    "gopher://127.0.0.1/",
]


def image_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def chat(*urls: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(map(image_part, urls))}], "max_tokens": 2}


def seeing_service(**changes: Any) -> Service:
    settings = Settings(validate_responses=True, **changes)
    return make_service(settings, fake_client(settings.engine_config(), vision=FAKE_VISION))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look names up as far as that needs no network."""

    def look_up(host: str, port: int, *rest: Any, **named: Any) -> Any:
        if host == "metadata":  # as a cloud's own name server answers
            host = "169.254.169.254"
        if str(host).endswith(".invalid"):  # a name server that isn't reached says so after many seconds
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found(host, port, *rest, **named)

    found = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.fixture
def connections(names: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note every connection, and let none succeed."""
    attempts: list[str] = []

    def connect(self: socket.socket, address: object) -> None:
        attempts.append(str(address))
        raise OSError("no network here")

    monkeypatch.setattr(socket.socket, "connect", connect)
    return attempts


@pytest.fixture
def images() -> Iterator[ImageServer]:
    with image_server() as server:
        yield server


def asked(service: Service, requests: Sequence[tuple[str, Any]]) -> list[httpx.Response]:
    """Return the answers of a server in this process, which is asked without a socket."""

    async def ask() -> list[httpx.Response]:
        async with serving(create_app(service), service) as client:
            return [await client.post(path, json=body) for path, body in requests]

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "request_of",
    [
        lambda url: ("/v1/chat/completions", chat(url)),
        lambda url: ("/invocations", chat(url)),
        lambda url: ("/vertex", {"instances": [chat(url)]}),
        lambda url: ("/generate", {"inputs": f"![]({url})"}),
        lambda url: ("/generate_stream", {"inputs": f"![]({url})"}),
        lambda url: ("/v1/completions", {"prompt": ["a", f"![]({url})"]}),
        lambda url: ("/v2/models/m/infer", {"inputs": [{"data": [f"![]({url})"]}]}),
    ],
)
def test_an_address_inside_is_never_connected_to(
    request_of: Callable[[str], tuple[str, Any]], connections: list[str]
) -> None:
    answers = asked(seeing_service(), [request_of(url) for url in INSIDE])
    assert [answer.status_code for answer in answers] == [422] * len(INSIDE)
    assert connections == []


def test_no_answer_tells_an_unknown_host_from_one_inside(connections: list[str]) -> None:
    urls = ("http://127.0.0.1/", "http://localhost/", "http://metadata/", "http://no-such-host.invalid/")
    answers = asked(seeing_service(), [("/v1/chat/completions", chat(url)) for url in urls])
    assert len({answer.json()["error"] for answer in answers}) == 1


def test_an_address_outside_would_be_connected_to(connections: list[str]) -> None:
    (answer,) = asked(seeing_service(), [("/v1/chat/completions", chat(OUTSIDE))])
    assert (answer.status_code, len(connections)) == (422, 1)
    assert "no connection to its host came about" in answer.json()["error"]


def test_a_redirect_inside_is_never_followed(images: ImageServer) -> None:
    service = seeing_service(image_hosts=(images.entry,))
    with live_server(service) as live, image_server() as other:
        for url in [*INSIDE, other.url("/red.png")]:
            assert ask(live, chat(images.url(f"/to/{url}"))).status_code == 422
        assert other.asked == {}


def test_a_name_that_changes_its_mind_leads_nowhere(connections: list[str]) -> None:
    """Between a look-up that is checked and the connection there is no second one."""
    answers = iter([["93.184.216.34"], ["127.0.0.1"], ["127.0.0.1"]])

    async def resolve(host: str, port: int) -> list[str]:
        return next(answers)

    service = seeing_service()
    object.__setattr__(service, "fetcher", Fetcher(Hosts(), 1_000_000, resolve))
    asked(service, [("/v1/chat/completions", chat("http://rebinding.example/"))] * 2)
    assert connections == ["('93.184.216.34', 80)"]


def test_an_image_without_an_end_or_that_drips_is_cut(images: ImageServer) -> None:
    service = seeing_service(
        image_hosts=(images.entry,), image_fetch_timeout=1.0, max_image_fetch_size=1_000_000
    )
    with live_server(service) as live:
        for path in ("/endless.png", "/drip.png"):
            assert ask(live, chat(images.url(path))).status_code == 422
        assert ask(live, chat(images.url("/red.png"))).status_code == 200
    assert images.broken_off.wait(20)
    assert service.image_memory.held == 0


def test_images_without_number_are_refused_before_any_is_fetched(images: ImageServer) -> None:
    with live_server(seeing_service(image_hosts=(images.entry,))) as live:
        answer = ask(live, chat(*[images.url(f"/red.png?{at}") for at in range(1000)]))
        assert answer.status_code == 422
        assert len(answer.content) < 1000
        markdown = "![](" * 400_000  # each of which could be the beginning of one
        # Who looks from each of them to the end of the text is longer about it than the client waits
        assert ask(live, {"prompt": markdown}, "/v1/completions").status_code == 422
    assert images.asked == {}


def test_bodies_with_images_hold_no_more_than_they_may_together() -> None:
    url = f"data:image/png;base64,{base64.b64encode(RED + bytes(30_000)).decode()}"
    service = seeing_service(payload_limit=10_000, max_image_memory=100_000)
    with live_server(service) as live:
        with service.image_memory.hold(90_000):
            assert ask(live, chat(url)).status_code == 429
        assert ask(live, chat(url)).status_code == 200
    assert service.image_memory.held == 0


def test_nothing_of_an_image_is_logged(images: ImageServer, names: None) -> None:
    told = io.StringIO()
    data = base64.b64encode(RED + b"secret").decode()
    urls = [
        f"data:image/png;base64,{data}",
        f"data:image/png;base64,{data[:-1]}",
        images.url("/red.png?secret"),
        images.url("/secret"),
        "http://secret.invalid/",
        "http://127.0.0.1:1/secret",
    ]
    with logging_kept():
        logs.configure("trace", stream=told)
        with live_server(seeing_service(image_hosts=(images.entry, "127.0.0.1:1"))) as live:
            statuses = [ask(live, chat(url)).status_code for url in urls]
    assert statuses == [200, 422, 200, 422, 422, 422]
    assert "POST /v1/chat/completions" in told.getvalue()
    assert "secret" not in told.getvalue()
    assert data[:20] not in told.getvalue()


def ask(live: LiveServer, body: Any, path: str = "/v1/chat/completions") -> httpx.Response:
    return live.post(path, body)
