"""The file of keys, read: names, digests, scopes, rates, comments."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers import keys
from handlers.keys import GENERATE, MAX_RATE, SCOPES, TOKENIZE, Key, Keyring, read_keys
from handlers.settings.row import SettingsError
from tests.support import PATIENCE

DIGEST = sha256(b"secret").hexdigest()
OTHER = sha256(b"other").hexdigest()
LINES = {
    f"a {DIGEST}": Key("a"),
    f"  a.b_c-9\t{DIGEST}  # of the team": Key("a.b_c-9"),
    f"a {DIGEST.upper()}": Key("a"),
    f"a {DIGEST} generate": Key("a", frozenset({GENERATE})),
    f"a {DIGEST} tokenize,generate": Key("a", frozenset({TOKENIZE, GENERATE})),
    f"a {DIGEST} tokenize,admin,generate": Key("a", SCOPES),
    f"a {DIGEST} requests_per_minute=5": Key("a", SCOPES, 5),
    f"a {DIGEST} tokenize tokens_per_minute=7 requests_per_minute=5": Key("a", frozenset({TOKENIZE}), 5, 7),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_a_key(line: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# keys\n\n{line}\n")
    assert read_keys(path) == {DIGEST: LINES[line]}


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b" \t\r\n", b""])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_what_an_editor_puts_at_the_ends_of_lines_and_file_is_left_out(
    end: bytes, mark: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    path.write_bytes(mark + f"a {DIGEST}".encode() + end)
    assert read_keys(path) == {DIGEST: Key("a")}


@pytest.mark.parametrize("nothing", [b"", b"\n"])
def test_the_digest_of_no_key_is_refused(nothing: bytes, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"a {sha256(nothing).hexdigest().upper()}\n")
    with pytest.raises(SettingsError, match="line 1: the digest is that of no key"):
        read_keys(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff", "it is not UTF-8"),
        (b"# nobody\n", r"from 1 to 100000 keys. Given: 0"),
    ],
)
def test_a_file_without_keys_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=reason):
        read_keys(path)


def test_a_key_that_stands_there_twice_is_refused_by_the_second_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"a {DIGEST}\nb {OTHER}\nc {DIGEST}\n")
    with pytest.raises(SettingsError, match="line 3: this key stands there twice"):
        read_keys(path)


def test_a_key_is_asked_for_if_there_is_a_file_or_one_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"a {DIGEST}\n")
    rings = [Keyring(None, str(path)), Keyring("own", None), Keyring("own", str(path)), Keyring(None, None)]
    assert [ring.locked for ring in rings] == [True, True, True, False]


@pytest.mark.parametrize("digits", [str(MAX_RATE + 1), "1" + "0" * 400, "9" * 5000, "0"])
def test_a_rate_that_no_bucket_could_hold_is_refused_by_its_line(digits: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"a {DIGEST} tokens_per_minute={MAX_RATE}\nb {OTHER} requests_per_minute={digits}\n")
    expected = (
        rf"line 2: `requests_per_minute` must be from 1 to {MAX_RATE}. Given: a number of {len(digits)} "
    )
    with pytest.raises(SettingsError, match=expected):
        read_keys(path)


@pytest.mark.parametrize("rates", ["tokens_per_minute=8", "", "requests_per_minute=7 tokens_per_minute=7"])
def test_lines_of_a_name_with_different_rates_are_refused(rates: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"\na {DIGEST} tokens_per_minute=7\na {OTHER} {rates}\n")
    with pytest.raises(SettingsError, match=r"line 3: `\w+` must be that of line 2, which has the same name"):
        read_keys(path)


def test_lines_of_a_name_may_differ_in_what_they_may_do(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"a {DIGEST} generate tokens_per_minute=7\na {OTHER} tokens_per_minute=7\nb {'0' * 64}\n")
    scopes = [key.scopes for key in read_keys(path).values()]
    assert scopes == [frozenset({GENERATE}), SCOPES, SCOPES]


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file or directory"):
        Keyring(None, str(tmp_path / "none"))


def test_without_keys_nothing_is_locked_and_nothing_opens(tmp_path: Path) -> None:
    ring = Keyring(None, None)
    assert (ring.locked, ring.find(b""), ring.find(b"x")) == (False, None, None)


@given(st.binary(max_size=40))
def test_only_the_key_itself_is_found(given_key: bytes) -> None:
    found = Keyring("secret", None).find(given_key)
    assert (found == Key("")) == (given_key == b"secret")
    assert Keyring("secret", None).find(b"secret") == Key("")


def test_the_file_is_looked_at_until_the_ring_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "LOOK_SECONDS", 0.01)
    path = tmp_path / "keys"
    path.write_text(f"a {DIGEST}\n")
    others = watching()
    rings = [Keyring(None, str(path))]
    assert rings[0].find(b"secret") == Key("a")
    path.write_text(f"bb {DIGEST}\n")
    until(lambda: rings[0].find(b"secret") == Key("bb"))
    rings.clear()
    until(lambda: watching() <= others)


def test_while_the_file_is_read_nobody_waits_and_the_old_keys_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reading, may_end = tmp_path / "keys", threading.Event(), threading.Event()
    path.write_text(f"a {DIGEST}\n")
    ring = Keyring(None, str(path))

    def read_slowly(path: Path) -> dict[str, Key]:
        reading.set()
        assert may_end.wait(PATIENCE)
        return read_keys(path)

    monkeypatch.setattr(keys, "read_keys", read_slowly)
    path.write_text(f"bb {DIGEST}\n")
    assert reading.wait(PATIENCE)
    assert ring.find(b"secret") == Key("a")
    may_end.set()
    until(lambda: ring.find(b"secret") == Key("bb"))


def test_a_fault_of_the_file_is_told_once_and_then_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "parley")
    monkeypatch.setattr(keys, "LOOK_SECONDS", PATIENCE)  # its thread is asleep
    path = tmp_path / "keys"
    path.write_text(f"a {DIGEST}\n")
    ring = Keyring(None, str(path))
    path.write_text(f"a {DIGEST[1:]}\n")
    for _ in range(3):
        ring.look()
    path.write_text(f"a {DIGEST[2:]}\n")
    monkeypatch.setattr(keys, "read_keys", lambda path: [][1])
    ring.look()
    monkeypatch.undo()
    caplog.set_level(logging.INFO, "parley")
    path.write_text(f"a {DIGEST}\n")
    for _ in range(2):
        ring.look()
    broken, odd, well = [record.getMessage() for record in caplog.records]
    assert "line 1: the second word must be a SHA-256 digest" in broken
    assert "can't be read: IndexError; the keys stay as they were" in odd
    assert well == "API keys were read again: there are 1 now"
    assert ring.find(b"secret") == Key("a")


def test_a_file_with_a_fault_in_it_is_read_again_once_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "LOOK_SECONDS", PATIENCE)  # its thread is asleep
    path, read = tmp_path / "keys", list[str]()
    path.write_text(f"a {DIGEST}\n")
    ring = Keyring(None, str(path))

    def read_and_noted(path: Path) -> dict[str, Key]:
        read.append(path.read_text())
        return read_keys(path)

    monkeypatch.setattr(keys, "read_keys", read_and_noted)
    broken, other, well = f"a {DIGEST[1:]}\n", "# nobody\n", f"bb {DIGEST}\n"
    for content in (broken, other, well):
        path.write_text(content)
        for _ in range(3):
            ring.look()
    assert read == [broken, other, well]
    assert ring.find(b"secret") == Key("bb")


def test_a_file_that_is_out_of_reach_is_tried_again_though_it_does_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "LOOK_SECONDS", PATIENCE)  # its thread is asleep
    path = tmp_path / "keys"
    path.write_text(f"a {DIGEST}\n")
    ring = Keyring(None, str(path))
    path.write_text(f"bb {DIGEST}\n")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", refused)
        ring.look()
    assert ring.find(b"secret") == Key("a")
    ring.look()
    assert ring.find(b"secret") == Key("bb")


def refused(path: Path, *, encoding: str) -> str:
    raise PermissionError(13, "Permission denied")


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def watching() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "keys"}
