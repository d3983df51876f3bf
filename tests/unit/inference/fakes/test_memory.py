from __future__ import annotations

from dataclasses import replace
from queue import Queue

from hypothesis import given
from hypothesis import strategies as st

from inference.fakes.core import FakeCore
from inference.fakes.memory import BLOCK, FakePrefixes
from inference.types import CoreRequest, Frame, LogprobsMode, Sampling
from tests.unit.inference.fakes.test_core import MODEL, REQUEST, answers

IDS = st.lists(st.integers(0, 1), min_size=1, max_size=5 * BLOCK).map(tuple)


def request(ids: tuple[int, ...], *, salt: str = "", prompt_logprobs: bool = False) -> CoreRequest:
    return CoreRequest(
        id="a",
        prompt_ids=ids,
        max_new_tokens=1,
        sampling=Sampling(),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=0,
        prompt_logprobs=prompt_logprobs,
        salt=salt,
    )


def common(ids: tuple[int, ...], others: list[tuple[int, ...]]) -> int:
    """Return how many whole blocks of a prompt begin another one, all but one token at most."""
    best = 0
    for other in others:
        same = next((at for at, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), None)
        length = min(len(ids), len(other)) if same is None else same
        best = max(best, length // BLOCK * BLOCK)
    return best if best < len(ids) else best - BLOCK


@given(st.lists(IDS.map(lambda ids: ids * 3), max_size=12))
def test_known_are_the_whole_blocks_that_an_earlier_prompt_began_with(prompts: list[tuple[int, ...]]) -> None:
    memory = FakePrefixes()
    for at, ids in enumerate(prompts):
        assert memory.take(request(ids)) == common(ids, prompts[:at])


def test_salts_share_nothing() -> None:
    memory, ids = FakePrefixes(), tuple(range(40))
    found = [memory.take(request(ids, salt=salt)) for salt in ("a", "b", "a", "")]
    assert found == [0, 0, 32, 0]


def test_the_logprobs_of_a_prompt_are_computed() -> None:
    memory, ids = FakePrefixes(), tuple(range(40))
    assert memory.take(request(ids)) == 0
    assert memory.take(request(ids, prompt_logprobs=True)) == 0
    assert memory.take(request(ids)) == 32


def test_what_was_used_last_is_kept() -> None:
    memory = FakePrefixes(blocks=2)
    first, second, third = ((at,) * (BLOCK + 1) for at in range(3))
    for ids in (first, second, first, third):
        memory.take(request(ids))
    assert [memory.take(request(ids)) for ids in (first, second)] == [BLOCK, 0]


def test_prompts_that_begin_alike_have_cached_tokens() -> None:
    prompt = tuple(range(10, 60))
    first, other = (
        replace(REQUEST, id="first", prompt_ids=prompt),
        replace(REQUEST, id="b", prompt_ids=prompt[:20]),
    )
    said = answers(first, replace(other, salt="own"), replace(other, id="c"))
    cached = {name: {each.cached_tokens for each in outputs} for name, outputs in said.items()}  # type: ignore[union-attr]
    assert cached == {"first": {0}, "b": {0}, "c": {16}}


def test_what_is_cached_is_not_counted_as_computed() -> None:
    frames: Queue[Frame] = Queue()
    core = FakeCore(MODEL)
    core.start(frames.put)
    for name in ("a", "b"):
        core.submit(replace(REQUEST, id=name, prompt_ids=tuple(range(40)), max_new_tokens=1))
    core.stop()
    stats = [frame.stats for frame in frames.queue]
    assert [(each.prefill_tokens, each.cached_tokens) for each in stats if each] == [(40, 0), (8, 32)]
