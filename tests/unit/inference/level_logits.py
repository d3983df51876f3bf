"""The logits of a prompt: a served model's, in pieces, and those of its own code."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from inference.levels.proof import scored_request
from inference.levels.served import Served
from inference.sequences.state import Chunk, Decodes, Sequence, SlotTable, pack

PROMPT = tuple(range(3, 90))  # more than five pages, and more than any window
OTHER = tuple(range(60, 20, -1))


def own_logits(model: PreTrainedModel, ids: tuple[int, ...]) -> Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def served_logits(served: Served, size: int, vocabulary: int = 97) -> Tensor:
    """Return the logits of PROMPT, computed in pieces of `size` beside pieces of another sequence."""
    table = SlotTable(slots=2, pages=6)
    runner = served.make_runner(10)
    sequences = [
        Sequence(scored_request(str(index), tuple(each % vocabulary for each in ids)))
        for index, ids in enumerate((PROMPT, OTHER))
    ]
    for sequence, blocks in zip(sequences, ([7, 2, 9, 0, 4, 3], [8, 1, 5]), strict=True):
        table.enter(sequence)
        table.extend(sequence, blocks)
    found = []
    for start in range(0, len(PROMPT), size):
        chunks = [
            Chunk(sequence, min(start, sequence.length), min(start + size, sequence.length))
            for sequence in reversed(sequences)
        ]
        chunks = [chunk for chunk in chunks if chunk.size]
        found.append(runner.run(pack(table, Decodes(), chunks))[-chunks[-1].size :].clone())
    return torch.cat(found)
