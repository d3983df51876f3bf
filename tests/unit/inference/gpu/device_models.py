"""Toy models on the device at hand, their own logits, and the same computed in pieces."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from inference.gpu.ops import Ops, torch_ops, triton_ops
from inference.levels.proof import scored_request
from inference.sequences.computing import Runner
from inference.sequences.state import Chunk, Decodes, Pieces, Sequence, SlotTable, pack
from tests.unit.inference.toy_models import toy

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PROMPT = tuple(range(3, 90))  # more than five pages, and more than any window
OTHER = tuple(range(60, 20, -1))
PAGES = ([7, 2, 9, 0, 4, 3], [8, 1, 5])
BLOCKS = 10


def device_ops() -> Ops:
    """Return the kernels of the device at hand; the interpreter is for a few tests only."""
    return triton_ops() if DEVICE.type == "cuda" else torch_ops()


def device_toy(name: str, dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    """Return a toy there."""
    return toy(name, **changes).to(DEVICE, dtype)


def own_logits(model: PreTrainedModel, ids: tuple[int, ...] = PROMPT) -> Tensor:
    """Return (tokens, vocabulary) of the model's own forward, in float32."""
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([ids], device=DEVICE), use_cache=False).logits[0]
    return logits.float()


def steps(size: int, *, beside: bool = True) -> list[Pieces]:
    """Return steps of PROMPT in pieces of `size`, behind pieces of OTHER if `beside`."""
    table = SlotTable(slots=2, pages=6)
    sequences = [Sequence(scored_request(str(index), ids)) for index, ids in enumerate((PROMPT, OTHER))]
    for sequence, pages in zip(sequences, PAGES, strict=True):
        table.enter(sequence)
        table.extend(sequence, pages)
    found = []
    for start in range(0, len(PROMPT), size):
        cut = [
            Chunk(sequence, min(start, sequence.length), min(start + size, sequence.length))
            for sequence in (reversed(sequences) if beside else sequences[:1])
        ]
        found.append(pack(table, Decodes(), [chunk for chunk in cut if chunk.size]))
    return found


def logits_in_pieces(runner: Runner[Tensor], size: int, *, beside: bool = True) -> Tensor:
    """Return the logits of PROMPT, computed so."""
    parts = [(runner.run(pieces).clone(), pieces.chunks[-1].size) for pieces in steps(size, beside=beside)]
    return torch.cat([logits[-count:] for logits, count in parts])


def apart(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference as a part of the largest logit."""
    return float((found - expected).abs().max() / expected.abs().max())
