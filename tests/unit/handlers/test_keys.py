"""The file of keys, read: names, digests, scopes, rates, comments."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.keys import GENERATE, MAX_RATE, SCOPES, TOKENIZE, Key, Keyring, read_keys
from handlers.settings_table import SettingsError

DIGEST = sha256(b"secret").hexdigest()
OTHER = sha256(b"other").hexdigest()
LINES = {
    f"a {DIGEST}": Key("a"),
    f"  a.b_c-9\t{DIGEST}  # of the team": Key("a.b_c-9"),
    f"a {DIGEST.upper()}": Key("a"),
    f"a {DIGEST} generate": Key("a", frozenset({GENERATE})),
    f"a {DIGEST} tokenize,generate": Key("a", SCOPES),
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


def test_the_file_is_looked_at_once_a_second(tmp_path: Path) -> None:
    path, now = tmp_path / "keys", [0.0]
    path.write_text(f"a {DIGEST}\n")
    ring = Keyring(None, str(path), clock=lambda: now[0])
    path.write_text(f"bb {DIGEST}\n")
    now[0] = 0.5
    before = ring.find(b"secret")
    now[0] = 1.0
    assert (before, ring.find(b"secret")) == (Key("a"), Key("bb"))
