"""Keys: which routes ask for one, how it is compared, what a named key may do, and who shares a cache."""

from __future__ import annotations

import hmac
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

import openapi
from handlers.http.errors import Refused
from handlers.keys import Key, Keyring, read_keys
from handlers.quotas import Quotas
from handlers.settings.row import SettingsError
from inference.fakes.core import fake_client
from inference.frontend.owners import OwnOwners
from tests.security.raw import connected, head
from tests.support import live_server, make_service

KEYS = {"alice": "a-" + "k" * 40, "bob": "b-" + "k" * 40, "reader": "r-" + "k" * 40}
PROMISES = (Path(__file__).parents[2] / "SECURITY.md").read_text()
OPEN = {
    ("get", "/"),
    ("get", "/health"),
    ("get", "/livez"),
    ("get", "/readyz"),
    ("get", "/info"),
    ("get", "/metrics"),
    ("get", "/ping"),
    ("get", "/v1/models"),
    ("get", "/v1/models/{model}"),
}
LONG = "Tell me all that there is to be known of the prefix cache of this server. " * 4


def line(name: str, *more: str) -> str:
    return " ".join((name, sha256(KEYS[name].encode()).hexdigest(), *more)) + "\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# who may ask\n\n{line('alice')}{line('bob', 'generate')}{line('reader', 'tokenize')}")
    return path


@contextmanager
def asking(**settings: Any) -> Iterator[Callable[..., httpx.Response]]:
    """Serve; give what posts as the owner of a key."""
    with live_server(**settings) as live, live.client() as client:

        def post(who: str, path: str = "/generate", body: Any = None) -> httpx.Response:
            headers = {"authorization": f"Bearer {KEYS.get(who, who)}"} if who else {}
            return client.post(path, json=body or {"inputs": "Hi"}, headers=headers)

        yield post


def test_every_route_asks_for_the_key_but_those_that_are_meant_to_be_open() -> None:
    document = openapi.load()
    open_to_all = {
        (method, path)
        for path, node in document["paths"].items()
        for method, operation in node.items()
        if "operationId" in operation and operation.get("security") == []
    }
    assert {each for each in open_to_all if not each[1].startswith("/v2")} == OPEN
    assert {method for method, path in open_to_all if path.startswith("/v2")} == {"get"}
    promised = set(re.findall(r"`(?:GET )?(/[\w.\-/]*)`", PROMISES.split("* Keys are looked up")[0]))
    assert {path for _, path in OPEN if "{" not in path} | {"/v2"} <= promised
    with live_server(api_key="secret") as live, live.client() as client:
        for path in promised - {"/v2"}:
            assert client.get(path, follow_redirects=True).status_code == 200, path
        for path, node in document["paths"].items():
            for method, operation in node.items():
                if "operationId" not in operation:
                    continue
                answer = client.request(method, path.replace("{", "").replace("}", ""), json={})
                assert (answer.status_code == 401) == ((method, path) not in open_to_all), (method, path)
        for variant in ("/generate/", "//generate", "/GENERATE", "/./generate", "/generate;x"):
            assert client.post(variant, json={"inputs": "Hi"}).status_code in (401, 404, 405), variant


WRONG = [
    "",
    "Bearer",
    "Bearer ",
    "Bearer secre",
    "Bearer secrets",
    "Bearer SECRET",
    "Basic secret",
    "secret",
    "Bearer secret, Bearer x",
    "Bearer secret\r\nauthorization: Bearer secret",
    "Bearer \x00secret",
]


def test_anything_but_the_key_is_refused() -> None:
    with live_server(api_key="secret") as live:
        for given in WRONG:
            with connected(live) as sock:
                sock.sendall(head("POST", "/generate", length=2, more=f"authorization: {given}\r\n") + b"{}")
                answer = sock.recv(4096)
            # 400: a header that HTTP doesn't know
            assert answer[:13] in (b"HTTP/1.1 401 ", b"HTTP/1.1 400 "), given
            assert b"secret" not in answer


def test_keys_are_compared_by_digests_and_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def noting(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return compare(left, right)

    monkeypatch.setattr(hmac, "compare_digest", noting)
    ring = Keyring("secret", None)
    assert ring.find(b"secret") == Key("")
    assert [ring.find(wrong) for wrong in (b"", b"s", b"secre", b"secret ", b"x" * 10**6)] == [None] * 5
    assert compared == [(sha256(b"secret").digest(),) * 2]
    # what is looked up is a digest under a secret of the process: two rings know the same key by other names
    assert ring._keys.keys().isdisjoint(Keyring("secret", None)._keys)


def test_named_keys_have_scopes(file: Path) -> None:
    with asking(api_keys_file=str(file)) as post:
        assert post("alice").status_code == 200
        assert post("alice", "/tokenize").status_code == 200
        assert post("bob").status_code == 200
        refused = post("bob", "/tokenize")
        assert (refused.status_code, refused.json()["error_type"]) == (403, "forbidden")
        assert "`tokenize`" in refused.json()["error"]
        assert post("reader", "/tokenize").status_code == 200
        assert post("reader").status_code == 403
        assert [post(who).status_code for who in ("", "nobody", "alic")] == [401, 401, 401]


def test_whose_key_may_not_is_logged(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "parley.access"), asking(api_keys_file=str(file)) as post:
        for who in ("bob", "nobody"):
            post(who, "/tokenize")
    told = {vars(record)["status"]: vars(record).get("key") for record in caplog.records}
    assert told == {403: "bob", 401: None}


def test_the_digest_of_a_key_is_no_key(file: Path) -> None:
    with asking(api_keys_file=str(file)) as post:
        assert post(sha256(KEYS["alice"].encode()).hexdigest()).status_code == 401


def test_keys_of_the_file_and_the_one_of_the_command_line_are_taken(file: Path) -> None:
    with asking(api_keys_file=str(file), api_key="secret") as post:
        assert [post(who).status_code for who in ("alice", "secret", "other")] == [200, 200, 401]


def test_a_file_that_changes_is_read_again_and_a_broken_one_changes_nothing(file: Path) -> None:
    ring = Keyring(None, str(file))
    alice, bob = KEYS["alice"].encode(), KEYS["bob"].encode()
    assert ring.find(alice) is not None
    file.write_text(line("bob"))
    os.utime(file, ns=(1, 1))
    ring.look()  # as a thread does every second
    assert (ring.find(alice), ring.find(bob)) == (None, Key("bob"))
    file.write_text("nonsense")
    ring.look()
    assert ring.find(bob) == Key("bob")
    file.unlink()
    ring.look()
    assert ring.find(bob) == Key("bob")
    file.write_text(line("alice"))
    ring.look()
    assert (ring.find(alice), ring.find(bob)) == (Key("alice"), None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nobody",
        "alice",
        "alice " + "k" * 40,
        "alice " + "0" * 63,
        "al/ice " + "0" * 64,
        "alice " + "0" * 64 + " root",
        "alice " + "0" * 64 + " generate,root",
        "alice " + "0" * 64 + " requests_per_minute=0",
        "alice " + "0" * 64 + " requests_per_minute=x",
        "alice " + "0" * 64 + " requests_per_minute=1 requests_per_minute=2",
        "alice " + "0" * 64 + "\nbob " + "0" * 64,
    ],
)
def test_a_file_with_a_fault_is_refused_by_its_line_and_no_key_is_shown(text: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(SettingsError, match="api_keys_file") as refusal:
        read_keys(path)
    assert "kkkk" not in str(refusal.value)
    with pytest.raises(SettingsError, match="can't be read"):
        read_keys(tmp_path / "nowhere")


def test_a_key_has_so_many_requests_in_a_minute(file: Path) -> None:
    file.write_text(line("alice", "requests_per_minute=2") + line("bob"))
    with asking(api_keys_file=str(file), requests_per_minute=3) as post:
        assert [post("alice").status_code for _ in range(3)] == [200, 200, 429]
        assert [post("bob").status_code for _ in range(4)] == [200, 200, 200, 429]
        refused = post("alice", "/tokenize")
        assert (refused.status_code, refused.json()["error_type"]) == (429, "rate_limited")
        assert 1 <= int(refused.headers["retry-after"]) <= 30


def test_two_keys_of_a_name_with_other_scopes_share_its_requests(file: Path) -> None:
    second = line("bob", "generate", "requests_per_minute=3").replace("bob", "alice")
    file.write_text(line("alice", "requests_per_minute=3") + second)
    with asking(api_keys_file=str(file)) as post:
        answers = [post(who).status_code for who in ("alice", "bob") * 3]
        assert answers == [200] * 3 + [429] * 3


def test_a_key_has_so_many_tokens_in_a_minute_however_its_requests_end(file: Path) -> None:
    file.write_text(line("alice", "tokens_per_minute=5") + line("bob"))
    with asking(api_keys_file=str(file)) as post:
        assert [post("alice").status_code for _ in range(2)] == [200, 429]
        assert [post("bob").status_code for _ in range(3)] == [200] * 3


def test_without_named_keys_a_rate_is_of_everyone_together() -> None:
    with asking(requests_per_minute=2) as post:
        assert [post(who).status_code for who in ("one", "two", "three")] == [200, 200, 429]


def test_time_gives_back_what_was_spent() -> None:
    now = 0.0
    quotas = Quotas(6, 100, clock=lambda: now)
    for _ in range(6):
        quotas.take(None)
    with pytest.raises(Refused) as refusal:
        quotas.take(None)
    assert refusal.value.headers == {"retry-after": "10"}
    now = 10.0
    quotas.take(None)
    quotas.charge("~who", 150)  # in debt: 50 of tokens, and 1 must be there
    now = 30.0
    with pytest.raises(Refused, match="tokens_per_minute"):
        quotas.take(None)
    now = 60.0
    quotas.take(None)


def test_of_several_replicas_each_gives_its_share() -> None:
    quotas = Quotas(9, replicas=4, clock=lambda: 0.0)
    quotas.take(None)
    quotas.take(None)
    with pytest.raises(Refused, match="of each of 4 replicas"):
        quotas.take(None)


def test_a_key_has_so_many_requests_in_flight(file: Path) -> None:
    service = make_service(api_keys_file=str(file), max_concurrent_requests_per_key=2)
    slow = fake_client(service.settings.engine_config(), step_seconds=0.01)
    with live_server(make_service(service.settings, slow)) as live:
        held = [slow.admit(1, "alice"), slow.admit(1, "alice")]
        headers = {name: {"authorization": f"Bearer {key}"} for name, key in KEYS.items()}
        refused = live.post("/generate", {"inputs": "Hi"}, headers=headers["alice"])
        assert (refused.status_code, refused.json()["error_type"]) == (429, "overloaded")
        assert "`max_concurrent_requests_per_key`, which is 2" in refused.json()["error"]
        assert live.post("/generate", {"inputs": "Hi"}, headers=headers["bob"]).status_code == 200
        for permit in held:
            permit.release()
        assert live.post("/generate", {"inputs": "Hi"}, headers=headers["alice"]).status_code == 200
        owners = slow._admission._owners
        assert isinstance(owners, OwnOwners)
        assert not owners._taken


@pytest.mark.parametrize(
    ("scope", "named", "shared"),
    [("auto", True, False), ("auto", False, True), ("key", False, False), ("all", True, True)],
)
def test_the_prefix_cache_tells_nothing_of_other_keys(
    scope: str, named: bool, shared: bool, file: Path
) -> None:
    more = {"api_keys_file": str(file)} if named else {}
    with asking(prefix_cache_scope=scope, **more) as post:
        asked = {"prompt": LONG, "max_tokens": 2}

        def found(who: str, **also: str) -> bool:
            usage = post(who, "/v1/completions", {**asked, **also}).json()["usage"]
            return bool(usage["prompt_tokens_details"]["cached_tokens"])

        assert not found("alice")
        assert found("alice")
        assert found("bob") == shared
        assert found("bob")
        assert not found("alice", cache_salt="own")
        # nobody's salt leads to what another has
        assert not found("bob", cache_salt="alice")
        assert not found("bob", cache_salt=f"5:alice{LONG}"[:10])
