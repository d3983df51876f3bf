"""Which prompts a fake engine has seen: so many of their tokens count as cached."""

from __future__ import annotations

from collections import OrderedDict

from inference.types import CoreRequest

BLOCK = 16  # tokens, as in the engine's own cache
BLOCKS_KEPT = 4096


class FakePrefixes:
    """The beginnings of prompts in whole blocks, those used last."""

    def __init__(self, blocks: int = BLOCKS_KEPT) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._limit = blocks

    def take(self, request: CoreRequest) -> int:
        """Remember a prompt; return how many of its tokens were known, never all of them.

        As in the engine: only requests with the same salt and adapter share, and one that asks for its
        prompt's log-probabilities finds nothing, since they must be computed.
        """
        ids = request.prompt_ids
        key, known, found = hash((request.salt, request.adapter)), True, 0
        for stop in range(BLOCK, len(ids) + 1, BLOCK):
            key = hash((key, ids[stop - BLOCK : stop]))
            known = known and key in self._blocks
            found = stop if known else found
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._limit:
            self._blocks.popitem(last=False)
        if request.prompt_logprobs:
            return 0
        return found if found < len(ids) else max(found - BLOCK, 0)
