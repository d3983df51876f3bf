"""Models that attend by their own code: whatever steps a text comes in, its logits are those of that code."""

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from codegen.toys import toy_model  # noqa: E402
from inference.cpu.batched import BatchedRunner, Part, _Work, find_parts  # noqa: E402
from inference.kernels.native import open_library  # noqa: E402
from inference.kv_cache.blocks import blocks_for  # noqa: E402
from inference.levels.proof import scored_request  # noqa: E402
from inference.levels.served import Level, Served  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.sequences.faults import RequestFault  # noqa: E402
from inference.sequences.state import Chunk, Decodes, Sequence, SlotTable, pack  # noqa: E402
from tests.unit.inference.level_logits import own_logits  # noqa: E402
from tests.unit.inference.state_steps import PAGES, TEXTS, Step, computed, schedules  # noqa: E402

# With rotations, keys chosen by others, latent keys, keys that their values mask, and
# keys of several tokens each
FAMILIES = ["xglm", "deepseek_v32", "diffllama", "doge", "deepseek_v4"]


@cache
def served(family: str) -> tuple[Served, tuple[Tensor, ...]]:
    """Return a toy at its level, and what its own code makes of each text."""
    torch.set_num_threads(1)
    model = toy_model(family)
    expected = tuple(own_logits(model, text) for text in TEXTS)
    library = open_library(threads=1)
    return bring_up(model, Options(library=library, without="it isn't built", max_total_tokens=64)), expected


def assert_near(found: Tensor, expected: Tensor) -> None:
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=12)
@given(steps=schedules())
def test_any_steps_give_the_models_own_logits_though_some_are_computed_again(
    family: str, steps: list[Step]
) -> None:
    level, expected = served(family)
    assert level.level is Level.BATCHED
    runner = level.make_runner(len(TEXTS) * PAGES)
    for found, own in zip(computed(runner, steps), expected, strict=True):
        assert_near(found, own)


def test_what_a_token_takes_of_the_cache_is_what_its_layers_keep() -> None:
    level, _ = served("deepseek_v32")
    parts = find_parts(toy_model("deepseek_v32"))
    assert {part.kind for part in parts} == {"keys", "values", "indexer keys"}
    assert level.kv_bytes == 4 * sum(part.elements for part in parts)
    assert [each.nbytes for each in runner_of(level).arrays] == [4 * PAGES * 16 * p.elements for p in parts]


def runner_of(level: Served) -> BatchedRunner:
    runner = level.make_runner(PAGES)
    assert isinstance(runner, BatchedRunner)
    return runner


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that comes to have how many pieces each pass computes."""
    sizes: list[int] = []
    own = BatchedRunner._run

    def noting(self: BatchedRunner, batch: list[_Work]) -> list[Tensor]:
        sizes.append(len(batch))
        return own(self, batch)

    monkeypatch.setattr(BatchedRunner, "_run", noting)
    return sizes


@pytest.mark.parametrize(("last", "passes"), [(1, [2, 1]), (3, [2, 1]), (6, [2, 1]), (9, [1, 1])])
def test_texts_of_unlike_lengths_and_long_pieces_have_passes_of_their_own(
    monkeypatch: pytest.MonkeyPatch, batches: list[int], last: int, passes: list[int]
) -> None:
    monkeypatch.setattr("inference.cpu.batched._SHORT", 4)
    level, expected = served("xglm")
    texts = [text for text in enumerate(TEXTS) if len(text[1]) > last]  # of 40, 23 and 7 tokens
    begun: Step = [(at, 0, len(text) - last, False) for at, text in texts]
    ended: Step = [(at, len(text) - last, len(text), False) for at, text in texts]
    short: Step = [(2, 0, 7, False)] if len(texts) < 3 else []
    runner = level.make_runner(len(TEXTS) * PAGES)
    found = computed(runner, [[*begun, *short], ended])
    for logits, own in zip(found, expected, strict=True):
        assert_near(logits, own)
    assert batches[-len(passes) :] == passes


def test_texts_that_are_compressed_by_where_their_tokens_are_have_no_padding(batches: list[int]) -> None:
    level, expected = served("deepseek_v4")
    begun: Step = [(0, 0, 22, False), (1, 0, 22, False), (2, 0, 6, False)]
    found = computed(
        level.make_runner(len(TEXTS) * PAGES),
        [begun, [(at, stop, stop + 1, False) for at, _, stop, _ in begun]],
    )
    for logits, own in zip(found, expected, strict=True):
        assert_near(logits, own[: len(logits)])
    assert batches[-2:] == [2, 1]


def test_keys_that_are_values_too_are_kept_once() -> None:
    parts = find_parts(toy_model("deepseek_v4"))
    layers = {part.layer for part in parts}
    assert [part.layer for part in parts if part.kind == "keys"] == sorted(layers)
    assert not any(part.kind == "values" for part in parts)
    assert {part.kind for part in parts if part.windowed} == {
        "compressor to compress", "compressor gates", "indexer to compress", "indexer gates",
    }  # fmt: skip


def test_batch_is_as_large_as_what_it_sees_may_be(
    monkeypatch: pytest.MonkeyPatch, batches: list[int]
) -> None:
    monkeypatch.setattr("inference.cpu.batched._TOKENS", 70)
    level, expected = served("xglm")
    begun: Step = [(at, 0, len(text) - 1, False) for at, text in enumerate(TEXTS)]
    ended: Step = [(at, len(text) - 1, len(text), False) for at, text in enumerate(TEXTS)]
    runner = level.make_runner(len(TEXTS) * PAGES)
    for logits, own in zip(computed(runner, [begun, ended]), expected, strict=True):
        assert_near(logits, own)
    assert batches[-2:] == [1, 2]  # 40 tokens, and twice 23


def test_piece_that_fails_is_the_fault_of_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy_model("xglm")
    parts: tuple[Part, ...] = find_parts(model)
    runner = BatchedRunner(model, parts, PAGES, torch.float32)
    table = SlotTable(slots=1, pages=PAGES)
    sequence = Sequence(scored_request("0", TEXTS[0]))
    table.enter(sequence)
    table.extend(sequence, range(blocks_for(sequence.length)))

    def fail(self: nn.Module, *_: object, **__: object) -> None:
        raise ArithmeticError("a token that it can't stand")

    monkeypatch.setattr(type(model.base_model), "forward", fail)
    with pytest.raises(RequestFault) as failed:
        runner.run(pack(table, Decodes(), [Chunk(sequence, 0, 9)]))
    assert failed.value.sequence is sequence
