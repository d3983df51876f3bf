from __future__ import annotations

import pytest

from inference.state import Chunk, Sequence
from tests.unit.inference.paper_model import request


def test_tokens_are_the_prompt_and_what_was_generated() -> None:
    sequence = Sequence(request("1", 3, 2))
    sequence.append(40)
    assert sequence.ids.tolist() == [13, 14, 15, 40]
    assert (sequence.length, sequence.generated, sequence.remaining) == (4, 1, 4)


def test_preempted_sequence_keeps_its_tokens_and_nothing_else() -> None:
    sequence = Sequence(request("1", 3, 2))
    sequence.append(40)
    sequence.computed, sequence.blocks, sequence.cache = 3, [7], object()
    sequence.forget_computed()
    assert sequence.ids.tolist() == [13, 14, 15, 40]
    assert (sequence.computed, sequence.blocks, sequence.cache) == (0, [], None)


@pytest.mark.parametrize(
    ("start", "stop", "decodes", "samples", "rows"),
    [(0, 5, False, False, 0), (5, 9, False, False, 0), (5, 10, False, True, 1), (9, 10, False, True, 1)],
)
def test_chunk_of_a_prompt(start: int, stop: int, decodes: bool, samples: bool, rows: int) -> None:
    chunk = Chunk(Sequence(request("1", 10, 5)), start, stop)
    assert (chunk.decodes, chunk.samples, chunk.logit_rows) == (decodes, samples, rows)


def test_chunk_of_a_generated_token() -> None:
    sequence = Sequence(request("1", 10, 5, prompt_logprobs=True))
    assert Chunk(sequence, 0, 4).logit_rows == 4
    sequence.append(1)
    chunk = Chunk(sequence, 10, 11)
    assert (chunk.decodes, chunk.samples, chunk.logit_rows) == (True, True, 1)
