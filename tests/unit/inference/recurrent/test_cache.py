"""Whatever steps it comes in, and if some fail, a text's logits are those of its model's own code."""

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from torch import Tensor  # noqa: E402

from codegen.toy_rules import VOCABULARY  # noqa: E402
from codegen.toys import toy_model  # noqa: E402
from inference.kernels.native import open_library  # noqa: E402
from inference.kv_cache.blocks import blocks_for  # noqa: E402
from inference.levels.proof import scored_request  # noqa: E402
from inference.levels.served import Level, Served  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.models.attending import ATTENTION  # noqa: E402
from inference.sequences.state import Chunk, Decodes, Sequence, SlotTable, pack  # noqa: E402
from inference.telling import counted  # noqa: E402
from tests.unit.inference.level_logits import own_logits  # noqa: E402
from tests.unit.inference.state_steps import PAGES, TEXTS, Step, computed, schedules  # noqa: E402

FAMILIES = [
    "lfm2", "qwen3_5_text", "qwen3_next", "olmo_hybrid", "bamba", "granitemoehybrid", "mamba2", "falcon_h1",
    "recurrent_gemma", "minimax",
]  # fmt: skip
FUSED = set(
    "lfm2 qwen3_5_text qwen3_next olmo_hybrid bamba granitemoehybrid mamba2".split()
)  # with the extension


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
def test_steps_are_packed_and_states_are_counted(family: str) -> None:
    level, _ = served(family)
    native = Level.FUSED if family in FUSED else Level.NATIVE
    assert level.level in (native, Level.PAGED, Level.PAGED_MERGED)
    assert level.state_layers > 0
    assert level.state_bytes > 0
    assert f"states of {counted(level.state_layers, 'layer')}" in str(level)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25)
@given(steps=schedules())
def test_any_steps_give_the_models_own_logits_though_some_are_computed_again(
    family: str, steps: list[Step]
) -> None:
    level, expected = served(family)
    runner = level.make_runner(len(TEXTS) * PAGES)
    for found, own in zip(computed(runner, steps), expected, strict=True):
        assert_near(found, own)


@pytest.mark.parametrize("family", ["lfm2", "qwen3_5_text"])
def test_slot_of_another_text_has_nothing_of_it(family: str) -> None:
    level, expected = served(family)
    table, runner = SlotTable(slots=1, pages=PAGES), level.make_runner(PAGES)
    for text, own in zip(TEXTS, expected, strict=True):
        sequence = Sequence(scored_request("0", text))
        table.enter(sequence)
        table.extend(sequence, range(blocks_for(sequence.length)))
        pieces = [Chunk(sequence, 0, 5), Chunk(sequence, 5, sequence.length)]
        found = [runner.run(pack(table, Decodes(), [piece])).clone() for piece in pieces]
        assert_near(torch.cat(found), own)
        table.leave(sequence)


def test_text_that_goes_on_from_where_it_never_was_is_refused() -> None:
    level, _ = served("lfm2")
    table, runner = SlotTable(slots=1, pages=PAGES), level.make_runner(PAGES)
    sequence = Sequence(scored_request("0", TEXTS[0]))
    table.enter(sequence)
    table.extend(sequence, range(PAGES))
    runner.run(pack(table, Decodes(), [Chunk(sequence, 0, 8)]))
    with pytest.raises(RuntimeError, match="from where it has no state"):
        runner.run(pack(table, Decodes(), [Chunk(sequence, 9, 12)]))


def test_models_own_passes_are_as_ever_between_steps() -> None:
    model = toy_model("qwen3_5_text")
    before = own_logits(model, TEXTS[0])
    level = bring_up(model, Options(library=None, without="it isn't there", max_total_tokens=64))
    model.set_attn_implementation("eager")
    changed = own_logits(
        model, TEXTS[0]
    )  # whose linears are other ones now, with other last bits on some CPUs
    assert_near(changed, before)
    model.set_attn_implementation(ATTENTION)
    runner = level.make_runner(PAGES)
    table = SlotTable(slots=1, pages=PAGES)
    sequence = Sequence(scored_request("0", TEXTS[1]))
    table.enter(sequence)
    table.extend(sequence, range(PAGES))
    runner.run(pack(table, Decodes(), [Chunk(sequence, 0, 8)]))
    model.set_attn_implementation("eager")
    assert torch.equal(own_logits(model, TEXTS[0]), changed)
    assert VOCABULARY == before.shape[1]


def test_memory_that_is_short_once_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    level, expected = served("lfm2")
    table, runner = SlotTable(slots=1, pages=PAGES), level.make_runner(PAGES)
    sequence = Sequence(scored_request("0", TEXTS[2]))
    table.enter(sequence)
    table.extend(sequence, range(PAGES))
    pieces = pack(table, Decodes(), [Chunk(sequence, 0, sequence.length)])

    def short(*_: int) -> Tensor:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("inference.kernels.native_state.untouched", short)
        patched.setattr("inference.recurrent.cache.untouched", short)
        with pytest.raises(MemoryError):
            runner.run(pieces)
    assert_near(runner.run(pieces), expected[2])


def test_weight_that_was_packed_is_in_memory_once() -> None:
    library = open_library(threads=1)
    if library is None:
        pytest.skip("the extension isn't built")
    model = toy_model("mamba")
    expected = own_logits(model, TEXTS[0])
    level = bring_up(model, Options(library=library, max_total_tokens=64))
    kept = {name for name, _ in model.named_parameters() if "_proj" in name}
    assert {name.rpartition(".")[2] for name in kept} == {"bias"}
    table, runner = SlotTable(slots=1, pages=PAGES), level.make_runner(PAGES)
    sequence = Sequence(scored_request("0", TEXTS[0]))
    table.enter(sequence)
    table.extend(sequence, range(PAGES))
    pieces = pack(table, Decodes(), [Chunk(sequence, 0, sequence.length)])
    assert_near(runner.run(pieces), expected)
