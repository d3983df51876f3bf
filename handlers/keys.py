"""API keys: the one of `--api-key`, and those of a file, of which only digests are known.

A line of the file is a key:

    NAME SHA256 [SCOPE,...] [requests_per_minute=N] [tokens_per_minute=N]

SHA256 is the key's digest in hexadecimal, as `printf %s "$KEY" | sha256sum` prints it (`echo` would add a
line's end to the key, and nobody could give that). Keys should be long and random, as these are: a digest of
them tells nothing, and no slow hash is needed. Without scopes a key has all of them: `generate`, `tokenize`,
and `admin`, which loads adapters while the server runs. Lines of the same name are one caller's, so that a
key can be replaced by another: they share what its rates give, and so must have the same ones. Empty lines,
and what follows a `#`, are left out.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path

from handlers.settings.row import SettingsError

GENERATE, TOKENIZE, ADMIN = "generate", "tokenize", "admin"
SCOPES = frozenset({GENERATE, TOKENIZE, ADMIN})
RATES = ("requests_per_minute", "tokens_per_minute")
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
DIGEST = re.compile(r"[0-9a-fA-F]{64}")
EMPTY = frozenset(sha256(nothing).hexdigest() for nothing in (b"", b"\n", b"\r\n"))
MAX_KEYS = 100_000
MAX_RATE = 10**9  # a minute; what is beyond it is a slip of the pen
LOOK_SECONDS = 1.0  # how often the file is looked at

logger = logging.getLogger("parley")


@dataclass(frozen=True, slots=True)
class Key:
    """What is known of a key."""

    name: str  # "" for that of `--api-key`
    scopes: frozenset[str] = SCOPES
    requests_per_minute: int | None = None  # None: as the setting says
    tokens_per_minute: int | None = None


class OutOfReach(SettingsError):
    """The file can't be read, whatever is in it."""


class Keyring:
    """The keys that are taken; a file that changes is read again, by a thread that looks at it every second.

    Nobody waits for that: until the file is read, the keys are the old ones. It is looked at without a
    request, too, so that a key that was taken out while nobody asked doesn't open once more.

    Keys are looked up by a digest under a secret of this process: how long it takes says nothing about any
    key, and it doesn't depend on how many there are.
    """

    def __init__(self, api_key: str | None, path: str | None) -> None:
        """Read the file, if there is one; raises SettingsError."""
        self._path = None if path is None else Path(path)
        self._secret = secrets.token_bytes(32)
        own = {} if api_key is None else {sha256(api_key.encode()).hexdigest(): Key("")}
        self._own = self._indexed(own)
        self._keys = self._own
        self._seen: tuple[int, ...] | None = None  # of what was read last; None: it is to be read again
        self._fault = ""  # why it can't be read now
        if self._path is not None:
            self._seen = signature(self._path)
            self._keys = self._own | self._indexed(read_keys(self._path))
            threading.Thread(target=_watch, args=(weakref.ref(self),), name="keys", daemon=True).start()

    @property
    def locked(self) -> bool:
        """Return whether a key is asked for at all."""
        return self._path is not None or bool(self._own)

    def find(self, given: bytes) -> Key | None:
        """Return the key that was given, None if there is no such key."""
        digest = sha256(given).digest()
        found = self._keys.get(self._place(digest))
        return found[1] if found is not None and hmac.compare_digest(found[0], digest) else None

    def look(self) -> None:
        """Read the file again if it has changed; one that can't be read leaves the keys as they are.

        For a thread of its own: a file of 100,000 lines takes half a second.
        """
        try:
            self._read_again()
        except OutOfReach as error:
            self._tell(str(error))
        except SettingsError as error:
            self._tell(str(error), lasting=True)
        except Exception as error:  # for want of memory, say: the thread has to go on looking
            self._tell(f"`api_keys_file` {self._path} can't be read: {type(error).__name__}")

    def _read_again(self) -> None:
        if self._path is None:
            return
        seen = signature(self._path)
        if seen == self._seen:
            return
        self._seen = seen
        self._keys = self._own | self._indexed(read_keys(self._path))
        self._fault = ""
        logger.info("API keys were read again: there are %d now", len(self._keys))

    def _tell(self, fault: str, *, lasting: bool = False) -> None:
        """Say once why the file can't be read; it is tried again, with a `lasting` fault once it changes."""
        if fault != self._fault:
            logger.error("%s; the keys stay as they were", fault)
        self._fault = fault
        if not lasting:
            self._seen = None

    def _indexed(self, keys: Mapping[str, Key]) -> dict[bytes, tuple[bytes, Key]]:
        digests = ((bytes.fromhex(text), key) for text, key in keys.items())
        return {self._place(digest): (digest, key) for digest, key in digests}

    def _place(self, digest: bytes) -> bytes:
        return blake2b(digest, key=self._secret, digest_size=16).digest()


def _watch(kept: weakref.ref[Keyring]) -> None:
    """Look at a keyring's file every second, as long as anybody has the keyring."""
    while True:
        time.sleep(LOOK_SECONDS)
        ring = kept()
        if ring is None:
            return
        ring.look()
        del ring


def signature(path: Path) -> tuple[int, ...]:
    """Return what changes when a file does; raises SettingsError if it isn't there."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise OutOfReach(_unreadable(path, error.strerror)) from None
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_keys(path: Path) -> dict[str, Key]:
    """Return the keys by their digests in hexadecimal; raises SettingsError with the line that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise OutOfReach(_unreadable(path, error.strerror)) from None
    except UnicodeDecodeError:
        raise SettingsError(_unreadable(path, "it is not UTF-8")) from None
    keys: dict[str, Key] = {}
    first: dict[str, tuple[int, Key]] = {}  # of each name: its first line
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            digest, key = _key(words)
            _require_same_rates(key, *first.setdefault(key.name, (number, key)))
        except ValueError as error:
            raise SettingsError(f"`api_keys_file` {path}, line {number}: {error}") from None
        if digest in keys:
            raise SettingsError(f"`api_keys_file` {path}, line {number}: this key stands there twice")
        keys[digest] = key
    if not keys or len(keys) > MAX_KEYS:
        raise SettingsError(f"`api_keys_file` {path} must have from 1 to {MAX_KEYS} keys. Given: {len(keys)}")
    return keys


def _key(words: list[str]) -> tuple[str, Key]:
    """Return the digest and the key of a line; raises ValueError, which quotes no word: it may be a key."""
    name, digest, *rest = [*words, ""] if len(words) == 1 else words
    if NAME.fullmatch(name) is None:
        raise ValueError("a name must have from 1 to 64 letters, digits, points, dashes or underscores")
    if DIGEST.fullmatch(digest) is None:
        raise ValueError("the second word must be a SHA-256 digest: 64 hexadecimal digits")
    if digest.lower() in EMPTY:
        raise ValueError("the digest is that of no key: `printf %s` was given an empty text")
    scopes, rates = SCOPES, {}
    for place, word in enumerate(rest):
        rate, given, number = word.partition("=")
        if given and rate in RATES and rate not in rates and number.isdecimal():
            rates[rate] = _rate(rate, number)
        elif not given and place == 0 and set(word.split(",")) <= SCOPES:
            scopes = frozenset(word.split(","))
        else:
            raise ValueError(
                f"what follows the digest must be scopes ({', '.join(sorted(SCOPES))}, with commas), then "
                f"{' and '.join(f'{each}=N' for each in RATES)}"
            )
    return digest.lower(), Key(name, scopes, **rates)


def _rate(name: str, digits: str) -> int:
    """Return a rate; raises ValueError if no bucket could hold it."""
    # the length comes first: `int` refuses some thousand digits with words of its own
    if len(digits) > len(str(MAX_RATE)) or not 1 <= int(digits) <= MAX_RATE:
        raise ValueError(f"`{name}` must be from 1 to {MAX_RATE}. Given: a number of {len(digits)} digits")
    return int(digits)


def _require_same_rates(key: Key, number: int, first: Key) -> None:
    """Raise ValueError if a key has other rates than the first of its name, which stands in line `number`."""
    for rate in RATES:
        given, expected = getattr(key, rate), getattr(first, rate)
        if given != expected:
            raise ValueError(
                f"`{rate}` must be that of line {number}, which has the same name: give both lines the same, "
                f"or another name to one. Given: {given or 'none'} and {expected or 'none'}"
            )


def _unreadable(path: Path, reason: str | None) -> str:
    return f"`api_keys_file` {path} can't be read: {reason}"
