"""Which computed blocks are known, and which are being computed, so that nothing is computed twice.

A block's content is told by a digest of all tokens up to its end, and of the images that they stand for,
chained block by block, and of the salt with which the chain begins: sequences with different salts never
share anything.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from inference.kv_cache.blocks import PAGE, BlockPool
from inference.kv_cache.snapshots import Move, Snapshots
from inference.sequences.state import Pieces, Sequence, SlotTable

_DIGEST = 16  # bytes: two of 2**64 blocks collide by chance
_LONG = 8  # blocks of a prompt that is worth a step of its own for its last tokens


class PrefixCache:
    """The running sequences' full blocks, published as they are computed, and who computes which.

    With `enabled` false nothing is published, so nothing is found. With `snapshots` the model keeps states: a
    sequence begins with as many blocks as one of these has read.
    """

    def __init__(
        self, pool: BlockPool, table: SlotTable, snapshots: Snapshots | None = None, *, enabled: bool = True
    ) -> None:
        self.enabled = enabled
        self._snapshots = snapshots if enabled else None
        self._pool = pool
        self._table = table
        self._computing: dict[bytes, Sequence] = {}  # what is not published yet, and who will

    def clear(self) -> None:
        """Forget who computes what, and all states."""
        self._computing.clear()
        if self._snapshots is not None:
            self._snapshots.clear()

    @property
    def quiet(self) -> bool:
        """Return whether nobody is computing anything that others could need."""
        return not self._computing

    def find(self, sequence: Sequence) -> list[int]:
        """Return the blocks that a sequence without any can begin with, not held yet.

        At least its last token is left to compute.
        """
        if not self.enabled or sequence.wants_prompt_logprobs:  # those need the logits of all positions
            return []
        blocks = self._pool.find(self._digests(sequence, _shareable(sequence)))
        if self._snapshots is None:
            return blocks
        read = self._snapshots.find(sequence.digests[: len(blocks)])
        sequence.beginning.cuts.clear()  # what others had computed before, while it waits, is none of its own
        if read < len(blocks):  # others begin alike: from now on they find a state, too
            sequence.beginning.cuts.add(len(blocks) * PAGE)
        return blocks[:read]

    def awaits(self, sequence: Sequence, found: int) -> bool:
        """Return whether another sequence computes the block behind those that were found.

        Of states, any of them behind those: it keeps one where what they have in common ends.
        """
        if not self.enabled or sequence.wants_prompt_logprobs or found >= _shareable(sequence):
            return False
        if self._snapshots is None:
            return self._digests(sequence, found + 1)[found] in self._computing
        digests = self._digests(sequence, _shareable(sequence))
        last = next(
            (at for at in range(len(digests) - 1, found - 1, -1) if digests[at] in self._computing), None
        )
        if last is None:
            return False
        self._computing[digests[last]].beginning.cuts.add((last + 1) * PAGE)
        return True

    def begin(self, sequence: Sequence) -> None:
        """Announce what an admitted sequence will compute, unless another does already."""
        if self._snapshots is not None:
            self._begin_state(sequence, self._snapshots)
        if self.enabled:
            for digest in self._digests(sequence, sequence.length // PAGE)[sequence.computed // PAGE :]:
                if not self._pool.knows(digest):
                    self._computing.setdefault(digest, sequence)

    def adopt(self, sequence: Sequence) -> int:
        """Put blocks that are known by now in the place of those to be computed; return the tokens saved."""
        first = sequence.computed // PAGE
        if not self.enabled or sequence.wants_prompt_logprobs or self._snapshots is not None:
            return 0
        found = self._pool.find(self._digests(sequence, _shareable(sequence))[first:])
        if not found:
            return 0
        self._pool.hold(found)
        self._pool.give_back(sequence.blocks[first : first + len(found)])
        for index, block in enumerate(found, first):
            self._table.replace(sequence, index, block)
        saved = (first + len(found)) * PAGE - sequence.computed
        self._table.computed[sequence.slot] += saved
        self.publish(sequence)
        return saved

    def publish(self, sequence: Sequence) -> None:
        """Let others find the full blocks that a sequence has computed."""
        full = sequence.computed // PAGE
        if not self.enabled or full == sequence.published:
            return
        digests = self._digests(sequence, full)
        for index in range(sequence.published, full):
            digest, block = digests[index], sequence.blocks[index]
            known = self._pool.publish(block, digest)
            if known != block:  # computed by another meanwhile: one is enough
                self._table.replace(sequence, index, known)
            self._retract(sequence, digest)
        sequence.published = full

    def keep_states(self, pieces: Pieces, *, ahead: bool = False) -> None:
        """Have states kept that a step has made: where a cut is, and of texts that go on the newest one.

        `ahead`: the tokens that decodes compute may not be known. Then it is those that the step begins with,
        which are still there.
        """
        if self._snapshots is None:
            return
        read = pieces.stops
        if ahead and len(pieces.decodes):
            count = len(pieces.decodes)
            read = np.concatenate([pieces.starts[:count], read[count:]])
        for row in (read % PAGE == 0).nonzero()[0].tolist():
            stop, prompt = int(read[row]), row - len(pieces.decodes)
            sequence = pieces.decodes[row] if prompt < 0 else pieces.prompts[prompt].sequence
            if prompt >= 0 and stop not in sequence.beginning.cuts:
                continue
            sequence.beginning.cuts.discard(stop)
            if prompt < 0 and sequence.beginning.newest is not None:
                self._forget(sequence, sequence.beginning.newest, self._snapshots)
            digest = self._digests(sequence, stop // PAGE)[-1]
            place = self._snapshots.keep(digest)
            if place is None:
                continue
            sequence.beginning.kept.append(digest)
            if prompt < 0:
                sequence.beginning.newest = digest
            self._table.moves.append(Move(sequence.slot, place, stop, keeps=True))

    def end(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Take back what was announced and won't be computed; `keep` false: and all that it made."""
        for digest in sequence.digests[sequence.published :]:
            self._retract(sequence, digest)
        if self._snapshots is not None and not keep:
            for digest in tuple(sequence.beginning.kept):
                self._forget(sequence, digest, self._snapshots)

    def _forget(self, sequence: Sequence, digest: bytes, snapshots: Snapshots) -> None:
        snapshots.forget(digest)
        sequence.beginning.kept.remove(digest)
        sequence.beginning.newest = None

    def check(self) -> list[str]:
        """Return what is wrong with the states' places."""
        return [] if self._snapshots is None else self._snapshots.check()

    def _begin_state(self, sequence: Sequence, snapshots: Snapshots) -> None:
        """Have a sequence's state be that of the blocks that it has found, and kept at its last full one."""
        blocks = sequence.computed // PAGE
        if blocks:
            place = snapshots.use(sequence.digests[blocks - 1])
            self._table.moves.append(Move(sequence.slot, place, sequence.computed, keeps=False))
        last = _shareable(sequence)
        if last - blocks >= _LONG:
            sequence.beginning.cuts.add(last * PAGE)

    def _retract(self, sequence: Sequence, digest: bytes) -> None:
        if self._computing.get(digest) is sequence:
            del self._computing[digest]

    def _digests(self, sequence: Sequence, count: int) -> list[bytes]:
        """Return the digests of the first `count` blocks, all of them full."""
        chain = sequence.digests
        if len(chain) < count:
            digest = chain[-1] if chain else _root(sequence.request.salt, sequence.request.adapter)
            tokens = sequence.ids[len(chain) * PAGE : count * PAGE].astype("<i8").tobytes()
            sight = sequence.sight
            for at in range(0, len(tokens), PAGE * 8):
                seen = b"" if sight is None else sight.salt(len(chain))
                digest = _hash(digest + tokens[at : at + PAGE * 8] + seen)
                chain.append(digest)
        return chain[:count]


def _root(salt: str, adapter: int) -> bytes:
    """Return what a chain begins with: another hash, or a salt could stand for the beginning of a chain.

    An adapter's keys and values are of no use to others, whatever their salt.
    """
    computed_by = (adapter + 1).to_bytes(8, "little")
    text = salt.encode(errors="surrogatepass")
    return blake2b(text, digest_size=_DIGEST, person=b"salt", salt=computed_by).digest()


def _hash(content: bytes) -> bytes:
    return blake2b(content, digest_size=_DIGEST).digest()


def _shareable(sequence: Sequence) -> int:
    """Return how many of a sequence's blocks may be another's: all but the one of its last token."""
    return (sequence.length - 1) // PAGE
