"""Which replica should answer: one that has computed how the prompt begins, unless it has much more to do.

Each replica has a prefix cache of its own. What the gateway has sent where is remembered by digests of the
prompts' beginnings, so that a conversation goes on, and a shared beginning is computed, where it is known.
The idea is SGLang's cache-aware load balancing (https://lmsys.org/blog/2024-12-04-sglang-v0-4/), with digests
at doubling lengths in place of a tree: an entry has one size, whatever the prompts' lengths.
"""

from __future__ import annotations

import random
import re
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

# What holds the prompt in the bodies of all routes; a text that looks like it costs a detour, no more
PROMPT = re.compile(rb'"(?:messages|inputs?|prompt|instances|text_input)"\s*:\s*')
SHORTEST = 256  # bytes: what is computed again sooner than it is looked for
LONGEST = 2**20  # bytes: enough of an image that stands in a body; the event loop waits meanwhile
DIGEST_BYTES = 16
REMEMBERED = 16_384  # beginnings; some 6 MiB
SLACK = 4  # requests that a replica may have in work beyond twice those of the idlest

Replica = TypeVar("Replica", bound=Hashable)


def beginnings(body: bytes) -> tuple[bytes, ...]:
    """Return digests of the prompt's first 256, 512, 1,024 and so on bytes, as they stand in a JSON body.

    Prompts that are the same for a MiB count as the same.
    """
    found = PROMPT.search(body)
    if found is None:
        return ()
    start, digest, told = found.end(), blake2b(digest_size=DIGEST_BYTES), []
    done, length = 0, SHORTEST
    while length <= LONGEST and start + length <= len(body):
        digest.update(body[start + done : start + length])
        told.append(digest.digest())
        done, length = length, 2 * length
    return tuple(told)


class Ledger(Generic[Replica]):
    """Which replicas were sent which beginnings, of the last ones; for one thread."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._holders: OrderedDict[bytes, dict[Replica, None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def rank(self, digests: Sequence[bytes], loads: Mapping[Replica, int]) -> list[Replica]:
        """Return the replicas in the order in which they should be asked.

        `digests` are of a prompt's `beginnings`, `loads` the requests that each replica has in work. First
        comes the one that knows the longest beginning, the idlest of several, if it has at most SLACK more
        than twice the requests of the idlest of all; then the others, the idlest first.
        """
        order = sorted(loads, key=lambda replica: (loads[replica], random.random()))
        if not order:
            return []
        most = 2 * loads[order[0]] + SLACK
        for digest in reversed(digests):
            holders = [replica for replica in order if replica in self._holders.get(digest, ())]
            if holders and loads[holders[0]] <= most:
                order.remove(holders[0])
                return [holders[0], *order]
        return order

    def note(self, digests: Sequence[bytes], replica: Replica) -> None:
        """Remember that a replica computes these beginnings."""
        for digest in digests:
            self._holders.setdefault(digest, {})[replica] = None
            self._holders.move_to_end(digest)
        while len(self._holders) > self._remembered:
            self._holders.popitem(last=False)

    def forget(self, known: Mapping[Replica, object]) -> None:
        """Forget every replica but the known ones."""
        for digest in list(self._holders):
            holders = self._holders[digest]
            for replica in [replica for replica in holders if replica not in known]:
                del holders[replica]
            if not holders:
                del self._holders[digest]
