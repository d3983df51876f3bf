"""What is said of the tokens of many steps: every text ends where its own tokens say so."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.outputs import Outputs
from inference.sequences.chosen import Chosen
from inference.sequences.state import Sequence, SlotTable
from inference.types import CoreRequest, FinishReason, LogprobsMode, Sampling

EOS = 0


def sequence(limit: int, *, ignore_eos: bool) -> Sequence:
    return Sequence(
        CoreRequest(
            id=str(limit),
            prompt_ids=(1, 2),
            max_new_tokens=limit,
            ignore_eos=ignore_eos,
            sampling=Sampling(),
            logprobs=LogprobsMode.RAW,
            top_n_tokens=0,
            prompt_logprobs=False,
        )
    )


def end_of(text: list[int], of: Sequence) -> FinishReason | None:
    """Return why a text ends with its last token, looking at nothing else."""
    if len(text) == of.request.max_new_tokens:
        return FinishReason.LENGTH
    return FinishReason.EOS if text[-1] == EOS and not of.request.ignore_eos else None


@pytest.mark.parametrize("expected", [False, True], ids=["appended", "put where they were expected"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_texts_end_with_the_first_token_that_ends_them(data: st.DataObject, *, expected: bool) -> None:
    table, outputs = SlotTable(4, 4), Outputs((EOS,))
    waiting = data.draw(st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=8))
    texts: dict[Sequence, list[int]] = {}
    running: tuple[Sequence, ...] = ()
    while waiting or running:
        if waiting and (not running or (table.free and data.draw(st.integers(0, 3)) == 0)):
            limit, ignore_eos = waiting.pop()
            newcomer = sequence(limit, ignore_eos=ignore_eos)
            table.enter(newcomer)
            texts[newcomer] = []
            running = (*running, newcomer)
        tokens = data.draw(
            st.lists(st.sampled_from([EOS, 5, 6, 7, 8]), min_size=len(running), max_size=len(running))
        )
        positions = None
        if expected:
            slots = np.array([each.slot for each in running])
            positions = table.lengths[slots]
            table.lengths[slots] += 2  # another step was begun by now
        chosen = Chosen(np.array(tokens, dtype=np.int64), [-0.5] * len(tokens))
        said, finishes, failures = outputs.publish(table, running, chosen, len(running), {}, positions)
        if expected:
            table.lengths[slots] -= 1
        for each, token in zip(running, tokens, strict=True):
            texts[each].append(token)
        ends = {each: end_of(texts[each], each) for each in running}
        assert [output.finish for output in said] == list(ends.values())
        assert finishes == {each: why for each, why in ends.items() if why is not None}
        assert failures == {}
        for each in finishes:
            table.leave(each)
        if finishes:
            running = tuple(each for each in running if each not in finishes)
