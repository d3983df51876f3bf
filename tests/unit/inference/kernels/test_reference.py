"""The oracle here is attention written out with loops, one query and one head at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from inference.kernels.reference import Attention, Piece, Step, attend, write  # noqa: E402
from inference.kv_cache.blocks import PAGE  # noqa: E402

BLOCKS = 12
DIM, VALUE_DIM = 8, 6
CPU = torch.device("cpu")


@dataclass
class Text:
    """A sequence with its own keys and values, of which [start, stop) are computed now."""

    piece: Piece
    keys: Tensor  # (stop, kv_heads, dim)
    values: Tensor


def make_text(start: int, stop: int, blocks: list[int], kv_heads: int) -> Text:
    return Text(
        Piece(start, stop, blocks), torch.randn(stop, kv_heads, DIM), torch.randn(stop, kv_heads, VALUE_DIM)
    )


def by_hand(query: Tensor, text: Text, how: Attention) -> Tensor:
    """Return (tokens, heads, value_dim) of one sequence's queries."""
    heads, kv_heads = query.shape[1], text.keys.shape[1]
    out = torch.zeros(*query.shape[:2], VALUE_DIM)
    for row, position in enumerate(range(text.piece.start, text.piece.stop)):
        first = max(position - how.window + 1, 0) if how.window else 0
        first = max(first, position // how.chunk * how.chunk) if how.chunk else first
        for head in range(heads):
            shared = head * kv_heads // heads
            scores = [
                float(query[row, head] @ text.keys[at, shared]) * how.scaling
                for at in range(first, position + 1)
            ]
            if how.slopes is not None:
                scores = [
                    score - float(how.slopes[head]) * (position - first - index)
                    for index, score in enumerate(scores)
                ]
            if how.softcap:
                scores = [how.softcap * math.tanh(score / how.softcap) for score in scores]
            weights = [math.exp(score) for score in scores]
            total = sum(weights) + (math.exp(float(how.sinks[head])) if how.sinks is not None else 0)
            for weight, at in zip(weights, range(first, position + 1), strict=True):
                out[row, head] += weight / total * text.values[at, shared]
    return out


BATCHES = {
    "decodes": [(20, 21, [3, 5]), (0, 1, [7]), (15, 16, [1]), (16, 17, [9, 2])],
    "one decode": [(20, 21, [3, 5])],
    "prompts": [(0, 5, [4]), (0, 33, [0, 8, 2])],
    "decodes and pieces of prompts": [(20, 21, [3, 5]), (40, 41, [6, 1, 0]), (10, 29, [9, 2]), (3, 4, [11])],
}


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"window": 4},
        {"window": 1},
        {"chunk": 5},
        {"chunk": 1},
        {"chunk": 6, "window": 4},
        {"softcap": 2.0},
        {"sinks": True},
        {"slopes": True},
        {"slopes": True, "window": 4, "sinks": True},
        {"window": 7, "softcap": 1.5, "sinks": True},
    ],
    ids=str,
)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize("batch", BATCHES)
def test_attention_equals_the_loops(batch: str, heads: int, kv_heads: int, how: dict[str, float]) -> None:
    torch.manual_seed(0)
    texts = [make_text(*text, kv_heads) for text in BATCHES[batch]]
    sinks = torch.randn(heads) if how.get("sinks") else None
    attention = Attention(
        scaling=0.3,
        window=int(how["window"]) if "window" in how else None,
        chunk=int(how["chunk"]) if "chunk" in how else None,
        softcap=how.get("softcap"),
        sinks=sinks,
        slopes=torch.linspace(0.05, 0.5, heads) if how.get("slopes") else None,
    )
    # What was in the cache before must not matter, least of all if it was not a number.
    keys = torch.full((BLOCKS, PAGE, kv_heads, DIM), torch.nan)
    values = torch.full((BLOCKS, PAGE, kv_heads, VALUE_DIM), torch.nan)
    for text in texts:
        past = Step([Piece(0, text.piece.stop, text.piece.blocks)], CPU, torch.float32)
        write(keys, past.slots, text.keys)
        write(values, past.slots, text.values)
    step = Step([text.piece for text in texts], CPU, torch.float32)
    query = torch.randn(sum(text.piece.size for text in texts), heads, DIM)
    found = attend(query, keys, values, step, attention)
    parts = query.split([text.piece.size for text in texts])
    expected = torch.cat([by_hand(part, text, attention) for part, text in zip(parts, texts, strict=True)])
    assert torch.allclose(found, expected, atol=1e-5)


def test_slots_follow_the_blocks() -> None:
    step = Step([Piece(14, 18, [3, 1]), Piece(0, 2, [5])], CPU, torch.float32)
    assert step.slots.tolist() == [3 * PAGE + 14, 3 * PAGE + 15, PAGE, PAGE + 1, 5 * PAGE, 5 * PAGE + 1]
