"""How much each caller may ask for in a minute: requests as they come, tokens once they were spent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from handlers.http.errors import Refused
from handlers.keys import Key

MINUTE = 60.0  # seconds

Clock = Callable[[], float]


class Bucket:
    """Fills evenly up to what a minute allows, and starts full."""

    __slots__ = ("_clock", "_level", "_seen", "rate")

    def __init__(self, rate: float, clock: Clock) -> None:
        """`rate` is per minute."""
        self.rate = rate
        self._clock = clock
        self._level: float = rate
        self._seen = clock()

    def lacking(self, amount: float) -> float:
        """Return the seconds until there is so much; 0 if there is."""
        self._fill()
        return max(0.0, (amount - self._level) * MINUTE / self.rate)

    def change(self, rate: float) -> None:
        """Fill at another rate from now on; what was spent stays spent, and a debt stays a debt."""
        self._fill()
        self.rate = rate
        self._level = min(rate, self._level)

    def spend(self, amount: float) -> None:
        """Take so much; more than there is becomes a debt, which time pays."""
        self._level -= amount

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self.rate, self._level + (now - self._seen) * self.rate / MINUTE)
        self._seen = now


@dataclass(slots=True)
class Account:
    """One caller's buckets; None where there is no limit."""

    requests: Bucket | None = None
    tokens: Bucket | None = None


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
        processes: int = 1,
        clock: Clock = time.monotonic,
    ) -> None:
        """Of several API `processes` each gives its share, as none knows what the others gave."""
        self._requests = requests_per_minute
        self._tokens = tokens_per_minute
        self._processes = processes
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    def take(self, key: Key | None) -> None:
        """Count a request; raises Refused with 429 if its caller must wait."""
        account = self._account(key)
        if account.requests is not None:
            _require(account.requests, 1.0, "requests", self._processes)
        if account.tokens is not None:
            _require(account.tokens, 1.0, "tokens", self._processes)
        if account.requests is not None:
            account.requests.spend(1.0)

    def give_back(self, key: Key | None) -> None:
        """Count a request no more for which there was no room: another process may have some."""
        account = self._account(key)
        if account.requests is not None:
            account.requests.spend(-1.0)

    def charge(self, owner: str, tokens: int) -> None:
        """Count tokens that were read and written for an owner, who is a key's name or nobody known."""
        account = self._accounts.get(owner) or self._accounts.get("")
        if account is not None and account.tokens is not None:
            account.tokens.spend(tokens)

    def _account(self, key: Key | None) -> Account:
        name = "" if key is None else key.name
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Account()
        requests = None if key is None else key.requests_per_minute
        tokens = None if key is None else key.tokens_per_minute
        account.requests = self._bucket(account.requests, requests or self._requests)
        account.tokens = self._bucket(account.tokens, tokens or self._tokens)
        return account

    def _bucket(self, bucket: Bucket | None, rate: int | None) -> Bucket | None:
        """Return the bucket at such a rate, a full one if there was none; None if there is no rate."""
        if rate is None:
            return None
        share = max(1.0, rate / self._processes)
        if bucket is None:
            return Bucket(share, self._clock)
        if bucket.rate != share:
            bucket.change(share)
        return bucket


def _require(bucket: Bucket, amount: float, what: str, processes: int) -> None:
    seconds = bucket.lacking(amount)
    if seconds > 0:
        rate = f"{bucket.rate:.1f}".removesuffix(".0")
        share = f" of each of {processes} processes" if processes > 1 else ""
        raise Refused(
            f"Rate limit: `{what}_per_minute` is {rate}{share}, and they are used up: come back "
            "when `Retry-After` says",
            status=429,
            error_type="rate_limited",
            headers={"retry-after": f"{math.ceil(seconds)}"},
        )
