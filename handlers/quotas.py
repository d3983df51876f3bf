"""How much each caller may ask for in a minute: requests as they come, tokens once they were spent."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from handlers.http.errors import Refused
from handlers.keys import Key
from inference.frontend.rows import Row, SharedRows
from inference.frontend.shared import SharedMemory

MINUTE = 60.0  # seconds
BUCKET = 3  # numbers: the rate a minute, 0 where there is no bucket yet; what is left; when that was so
ACCOUNT = 2 * BUCKET  # of requests, and of tokens
MOST_ACCOUNTS = (
    524_288  # names of callers who aren't back at a full bucket: some for each key that there can be
)

Clock = Callable[[], float]


class Bucket:
    """Fills evenly up to what a minute allows, and starts full."""

    __slots__ = ("_clock", "_numbers")

    def __init__(self, rate: float, clock: Clock, numbers: Row[float] | None = None) -> None:
        """`rate` is per minute; `numbers` are those of the same bucket before, zeros for a new one.

        At another rate than before what was spent stays spent, and a debt stays a debt.
        """
        self._clock = clock
        self._numbers = blank(BUCKET) if numbers is None else numbers
        if self.rate == 0.0:
            self._numbers[1], self._numbers[2] = rate, clock()
        elif self.rate != rate:
            self._fill()
            self._numbers[1] = min(rate, self._numbers[1])
        self._numbers[0] = rate

    @property
    def rate(self) -> float:
        """Return how much flows in in a minute, which is also how much there can be."""
        return self._numbers[0]

    def lacking(self, amount: float) -> float:
        """Return the seconds until there is so much; 0 if there is."""
        self._fill()
        return max(0.0, (amount - self._numbers[1]) * MINUTE / self.rate)

    def spend(self, amount: float) -> None:
        """Take so much; more than there is becomes a debt, which time pays."""
        self._numbers[1] -= amount

    def _fill(self) -> None:
        rate, level, seen = self._numbers
        now = self._clock()
        self._numbers[1] = min(rate, level + (now - seen) * rate / MINUTE)
        self._numbers[2] = now


def blank(count: int) -> Row[float]:
    """Return so many numbers, all zeros."""
    return memoryview(array("d", bytes(8 * count)))


class Accounts(Protocol):
    """The numbers of callers, by name."""

    def account(self, name: str) -> AbstractContextManager[Row[float]]:
        """Have the numbers of a caller, zeros at first, to oneself."""


class OwnAccounts:
    """Those of the only process."""

    def __init__(self) -> None:
        self._numbers: dict[str, Row[float]] = {}

    @contextmanager
    def account(self, name: str) -> Iterator[Row[float]]:
        """Have the numbers of a caller."""
        numbers = self._numbers.get(name)
        if numbers is None:
            numbers = self._numbers[name] = blank(ACCOUNT)
        yield numbers


class SharedAccounts:
    """Those of several processes, in memory that they share: full buckets may be forgotten."""

    def __init__(self, memory: SharedMemory, clock: Clock = time.monotonic) -> None:
        """`memory` is what `create` made; `clock` is the machine's, not a process's own."""
        self._rows = SharedRows(memory, ACCOUNT, lambda row: seconds_until_full(row, clock()))

    @staticmethod
    def create() -> SharedMemory:
        """Return memory for the accounts."""
        return SharedRows.create(MOST_ACCOUNTS, ACCOUNT)

    @contextmanager
    def account(self, name: str) -> Iterator[Row[float]]:
        """Have the numbers of a caller; where there is no room left, those that are nearest to full go."""
        with self._rows.row(name) as numbers:
            assert numbers is not None, "each may be forgotten"
            yield numbers


def seconds_until_full(numbers: Row[float], now: float) -> float:
    """Return in how many seconds an account's buckets are as new ones would be; 0 if they are."""
    full = 0.0
    for at in range(0, ACCOUNT, BUCKET):
        rate, level, seen = numbers[at : at + BUCKET]
        if rate:
            full = max(full, (rate - level) * MINUTE / rate - (now - seen))
    return full


@dataclass(frozen=True, slots=True)
class Rates:
    """How much one caller may ask for in a minute; None where there is no limit."""

    requests: float | None = None
    tokens: float | None = None


class Quotas:
    """The accounts of callers: of each name in the file of keys, and one of everybody else together.

    Whoever comes without a name could make up another token for each request, so that a limit for each
    would be none. Tokens are known when they were spent: a caller is let in as long as it has any left, and
    what it then spends too much it has to wait for. An account is its name's: other keys of that name, other
    scopes and other rates find it as it was left.
    """

    def __init__(
        self,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        *,
        accounts: Accounts | None = None,
        replicas: int = 1,
        clock: Clock = time.monotonic,
    ) -> None:
        """`accounts` are shared with other processes; without them its own.

        Of several `replicas` each gives its share, as none knows what the others gave.
        """
        self._requests = requests_per_minute
        self._tokens = tokens_per_minute
        self._replicas = replicas
        self._clock = clock
        self._accounts = OwnAccounts() if accounts is None else accounts
        self._rates: dict[str, Rates] = {}  # of each name that has asked, as of its last request

    def take(self, key: Key | None) -> None:
        """Count a request; raises Refused with 429 if its caller must wait."""
        with self._buckets("" if key is None else key.name, self._rates_of(key)) as (requests, tokens):
            if requests is not None:
                _require(requests, 1.0, "requests", self._replicas)
            if tokens is not None:
                _require(tokens, 1.0, "tokens", self._replicas)
            if requests is not None:
                requests.spend(1.0)

    def give_back(self, key: Key | None) -> None:
        """Count a request no more for which there was no room: another replica may have some."""
        with self._buckets("" if key is None else key.name, self._rates_of(key)) as (requests, _):
            if requests is not None:
                requests.spend(-1.0)

    def charge(self, owner: str, tokens: int) -> None:
        """Count tokens that were read and written for an owner, who is a key's name or nobody known."""
        name = owner if owner in self._rates else ""
        with self._buckets(name, self._rates.get(name, Rates())) as (_, bucket):
            if bucket is not None:
                bucket.spend(tokens)

    def _rates_of(self, key: Key | None) -> Rates:
        name, requests, tokens = "", self._requests, self._tokens
        if key is not None:
            name = key.name
            requests, tokens = key.requests_per_minute or requests, key.tokens_per_minute or tokens
        rates = self._rates[name] = Rates(self._share(requests), self._share(tokens))
        return rates

    def _share(self, rate: int | None) -> float | None:
        return None if rate is None else max(1.0, rate / self._replicas)

    @contextmanager
    def _buckets(self, name: str, rates: Rates) -> Iterator[tuple[Bucket | None, Bucket | None]]:
        """Have a caller's buckets, of requests and of tokens, to oneself; None where there is no limit."""
        if rates == Rates():
            yield None, None
            return
        with self._accounts.account(name) as numbers:
            requests, tokens = numbers[:BUCKET], numbers[BUCKET:]
            yield self._bucket(requests, rates.requests), self._bucket(tokens, rates.tokens)

    def _bucket(self, numbers: Row[float], rate: float | None) -> Bucket | None:
        return None if rate is None else Bucket(rate, self._clock, numbers)


def _require(bucket: Bucket, amount: float, what: str, replicas: int) -> None:
    seconds = bucket.lacking(amount)
    if seconds > 0:
        rate = f"{bucket.rate:.1f}".removesuffix(".0")
        share = f" of each of {replicas} replicas" if replicas > 1 else ""
        raise Refused(
            f"Rate limit: `{what}_per_minute` is {rate}{share}, and they are used up: come back "
            "when `Retry-After` says",
            status=429,
            error_type="rate_limited",
            headers={"retry-after": f"{math.ceil(seconds)}"},
        )
