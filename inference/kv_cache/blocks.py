"""The KV cache's pages: who holds which, what those hold that nobody needs, and how many are free."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from inference.kv_cache.free_blocks import RUN, FreeBlocks

PAGE = 16  # tokens in one block
_SPARE = 16  # one block in so many may be free beside known contents, for the sake of whole runs


def blocks_for(tokens: int) -> int:
    """Return how many blocks hold `tokens` tokens."""
    return -(-tokens // PAGE)


class BlockPool:
    """Block numbers, each held by sequences, or idle with a content that is known, or free.

    A content is known by its digest. Several sequences may hold a block whose content is known. When
    nobody holds it any more it waits, idle, to be found again, until its page is needed: the one
    that has waited longest goes first.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = FreeBlocks(size)
        self._holders: list[int] = []
        self._idle: OrderedDict[int, None] = OrderedDict()  # known and not held, longest waiting first
        self._known: dict[bytes, int] = {}
        self._digests: list[bytes | None] = []
        self.clear()

    def clear(self) -> None:
        """Forget all contents and holders."""
        self._free = FreeBlocks(self.size)
        self._holders = [0] * self.size
        self._idle.clear()
        self._known.clear()
        self._digests = [None] * self.size

    @property
    def free(self) -> int:
        """Return how many blocks nobody holds and hold nothing that is known."""
        return len(self._free)

    @property
    def idle(self) -> int:
        """Return how many blocks nobody holds whose content is known."""
        return len(self._idle)

    @property
    def available(self) -> int:
        """Return how many blocks can be taken."""
        return len(self._free) + len(self._idle)

    @property
    def high_water(self) -> int:
        """Return the block from which on none was held since the contents were last forgotten."""
        return self._free.high_water

    @property
    def held(self) -> dict[int, int]:
        """Return the blocks that sequences hold, and how many hold each."""
        return {block: count for block, count in enumerate(self._holders) if count}

    def knows(self, digest: bytes) -> bool:
        """Return whether a block has this content."""
        return digest in self._known

    def take(self, count: int, after: int | None = None) -> list[int]:
        """Return `count` blocks, then held, their content forgotten; the caller has checked `available`.

        They lie behind the block `after` and behind each other where those are free.
        """
        assert count <= self.available, f"{count} blocks wanted, {self.available} available"
        taken = []
        for _ in range(count):
            after = self._choose(after)
            self._free.take(after)
            self._holders[after] = 1
            taken.append(after)
        return taken

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """Return the blocks of the contents, up to the first that isn't known; `hold` them at once."""
        found = []
        for digest in digests:
            block = self._known.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def idle_among(self, blocks: Iterable[int]) -> int:
        """Return how many of these blocks nobody holds."""
        return sum(not self._holders[block] for block in blocks)

    def hold(self, blocks: Iterable[int]) -> None:
        """Hold blocks that were found once more."""
        for block in blocks:
            assert self._digests[block] is not None, f"block {block} is shared, and its content isn't known"
            self._holders[block] += 1
            self._idle.pop(block, None)

    def publish(self, block: int, digest: bytes) -> int:
        """Let others find a held block by its content; return the block that is to be held instead of it.

        That is another one if the content was known already: then it is held, and `block` given back.
        """
        assert self._holders[block], f"block {block} is published, and nobody holds it"
        known = self._known.setdefault(digest, block)
        if known == block:
            self._digests[block] = digest
            return block
        self.hold([known])
        self.give_back([block])
        return known

    def give_back(self, blocks: Sequence[int], *, keep: bool = True) -> None:
        """Let go of blocks, in a sequence's order: the last ones' content will be forgotten first.

        With `keep` false the content of those that nobody else holds is forgotten at once.
        """
        for block in reversed(blocks):
            assert self._holders[block], f"block {block} is given back, and nobody holds it"
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if not keep:
                self._forget(block)
            if self._digests[block] is None:
                self._free.add(block)
            else:
                self._idle[block] = None

    def check(self, holders: Iterable[Iterable[int]] = ()) -> list[str]:
        """Return what is wrong, if these are the blocks that each sequence holds."""
        expected = [0] * self.size
        for blocks in holders:
            for block in blocks:
                expected[block] += 1
        faults = [
            f"block {block} is held {count} times, as the sequences say {should}"
            for block, (count, should) in enumerate(zip(self._holders, expected, strict=True))
            if count != should
        ]
        held = self.size - self._holders.count(0)
        if held + self.available != self.size or len({*self._free, *self._idle}) != self.available:
            faults.append(f"{held} held, {self.idle} idle and {self.free} free of {self.size} blocks")
        if any(self._digests[block] is None for block in self._idle):
            faults.append("blocks without a known content wait to be found")
        if {block: digest for digest, block in self._known.items()} != {
            block: digest for block, digest in enumerate(self._digests) if digest is not None
        }:
            faults.append("contents and blocks don't belong together one to one")
        return faults

    def check_idle(self) -> list[str]:
        """Return what is wrong if nobody holds any block, as far as counts show it."""
        if self.available == self.size and len(self._known) == self.idle:
            return []
        return [f"{self.idle} idle and {self.free} free of {self.size} blocks, {len(self._known)} known"]

    def _choose(self, after: int | None) -> int:
        """Return a free block for behind `after`, for which contents may be forgotten."""
        block = self._free.beside(after)
        if block is None and self._idle and len(self._free) <= self.size // _SPARE:
            evicted = self._evict()
            block = self._free.beside(after)
            return evicted if block is None else block
        return self._free.any() if block is None else block

    def _evict(self) -> int:
        """Free the block that has waited longest, and those of its run that are next; return the first."""
        first = next(iter(self._idle))
        run = first // RUN
        while True:
            block, _ = self._idle.popitem(last=False)
            self._forget(block)
            self._free.add(block)
            first = min(first, block)
            more = len(self._free) < self.size // _SPARE
            if not more or not self._idle or next(iter(self._idle)) // RUN != run:
                return first

    def _forget(self, block: int) -> None:
        digest = self._digests[block]
        if digest is not None:
            del self._known[digest]
            self._digests[block] = None
