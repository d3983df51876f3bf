"""States on a device: whatever steps come, and if some fail, logits are those of a model's own code."""

from __future__ import annotations

import gc
import weakref
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from torch import Tensor  # noqa: E402

from codegen.toys import toy_model  # noqa: E402
from inference.gpu.attention import PagedModel  # noqa: E402
from inference.gpu.model import EagerRunner  # noqa: E402
from inference.gpu.rehearsal import forms, rehearse  # noqa: E402
from inference.gpu.slots import MirroredTable  # noqa: E402
from inference.gpu.states import DeviceStates  # noqa: E402
from inference.kv_cache.blocks import blocks_for  # noqa: E402
from inference.kv_cache.snapshots import Move  # noqa: E402
from inference.levels.proof import scored_request  # noqa: E402
from inference.levels.served import Level, Served  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.sequences.state import Chunk, Decodes, Sequence, pack  # noqa: E402
from inference.telling import counted  # noqa: E402
from tests.unit.inference.gpu.device_models import DEVICE, apart, device_ops, own_logits  # noqa: E402
from tests.unit.inference.state_steps import PAGES, TEXTS, Step, computed, schedules  # noqa: E402

FAMILIES = [
    "lfm2",
    "qwen3_5_text",
    "qwen3_next",
    "olmo_hybrid",
    "granitemoehybrid",
    "falcon_h1",
    "jamba",
    "mamba",
]
NEAR = 1e-4


@cache
def served(family: str) -> tuple[Served, tuple[Tensor, ...]]:
    """Return a toy at its level, and what its own code makes of each text."""
    model = toy_model(family).to(DEVICE)
    expected = tuple(own_logits(model, text) for text in TEXTS)
    options = Options(library=None, ops=device_ops(), dtype=model.dtype, max_total_tokens=64)
    return bring_up(model, options), expected


def states_of(model: object) -> DeviceStates:
    assert isinstance(model, PagedModel)
    assert model.states is not None
    return model.states


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_are_packed_and_states_are_counted(family: str) -> None:
    level, _ = served(family)
    assert level.level in (Level.PAGED, Level.PAGED_MERGED)
    assert level.make_model is not None
    assert 0 < level.state_bytes <= states_of(level.make_model(1)).place_bytes
    assert f"states of {counted(level.state_layers, 'layer')}" in str(level)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=8, deadline=None)
@given(steps=schedules())
def test_any_steps_give_the_models_own_logits_though_some_are_computed_again(
    family: str, steps: list[Step]
) -> None:
    level, expected = served(family)
    for found, own in zip(computed(level.make_runner(len(TEXTS) * PAGES), steps), expected, strict=True):
        assert apart(found, own) < NEAR


@pytest.mark.parametrize("family", ["lfm2", "qwen3_5_text"])
def test_text_goes_on_from_a_state_that_was_kept_though_its_own_have_gone_on(family: str) -> None:
    level, expected = served(family)
    assert level.make_model is not None
    model = level.make_model(2 * PAGES)
    states, runner = states_of(model), EagerRunner(model)
    table = MirroredTable(2, PAGES, snapshots=2)
    states.allocate(2, table.snapshots)
    first, second = (Sequence(scored_request(str(at), TEXTS[0])) for at in range(2))
    for at, sequence in enumerate((first, second)):
        table.enter(sequence)
        table.extend(sequence, range(at * PAGES, at * PAGES + blocks_for(sequence.length)))
    runner.run(pack(table, Decodes(), [Chunk(first, 0, 16)]))
    runner.run(pack(table, Decodes(), [Chunk(first, 16, 17)]))  # the one of 16 tokens is still there
    for at, page in enumerate(first.blocks[:1]):
        table.replace(second, at, page)  # of keys and values
    moves = [Move(first.slot, 1, 16, keeps=True), Move(second.slot, 1, 16, keeps=False)]
    moves.append(Move(first.slot, 0, 17, keeps=True))
    states.move(moves)
    assert not moves
    found = runner.run(pack(table, Decodes(), [Chunk(second, 16, second.length)])).clone()
    assert apart(found, expected[0][16:]) < NEAR
    again = runner.run(pack(table, Decodes(), [Chunk(first, 17, first.length)]))
    assert apart(again, expected[0][17:]) < NEAR


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_there_are_places_for_as_many_slots_as_a_table_has(slots: int) -> None:
    level, expected = served("lfm2")
    runner = level.make_runner(slots * PAGES)
    table = MirroredTable(slots, PAGES)
    sequences = [Sequence(scored_request(str(at), TEXTS[1])) for at in range(slots)]
    for at, sequence in enumerate(sequences):
        table.enter(sequence)
        table.extend(sequence, range(at * PAGES, at * PAGES + blocks_for(sequence.length)))
    found = runner.run(pack(table, Decodes(), [Chunk(each, 0, each.length) for each in sequences]))
    for part in found.split(len(TEXTS[1])):
        assert apart(part, expected[1]) < NEAR


@pytest.mark.parametrize("family", ["lfm2", "qwen3_5_text"])
def test_text_whose_state_is_lost_gets_no_numbers_and_others_get_theirs(family: str) -> None:
    level, expected = served(family)
    assert level.make_model is not None
    model = level.make_model(2 * PAGES)
    runner, table = EagerRunner(model), MirroredTable(2, PAGES, snapshots=1)
    states_of(model).allocate(2, 1)
    sequences = [Sequence(scored_request(str(at), TEXTS[0])) for at in range(2)]
    for at, sequence in enumerate(sequences):
        table.enter(sequence)
        table.extend(sequence, range(at * PAGES, at * PAGES + blocks_for(sequence.length)))
    runner.run(pack(table, Decodes(), [Chunk(sequences[0], 0, 16), Chunk(sequences[1], 0, 15)]))
    both = pack(table, Decodes(), [Chunk(sequences[0], 16, 20), Chunk(sequences[1], 16, 20)])
    right, lost = runner.run(both).clone().split(4)
    assert apart(right, expected[0][16:20]) < NEAR
    assert lost.isnan().all()
    states_of(model).move([Move(0, 0, 11, keeps=True), Move(1, 0, 11, keeps=False)])
    assert runner.run(pack(table, Decodes(), [Chunk(sequences[1], 11, 13)])).isnan().all()


def test_each_kind_of_move_is_made_once_before_a_state_is_anybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    level, _ = served("mamba")
    assert level.make_model is not None
    model, moved = level.make_model(blocks_for(64)), []
    ops, states = model.ops, states_of(model)
    states.allocate(2, 1)
    before = states._places.fill_(7.0).clone()

    def move(places: Tensor, *all: Tensor, keeps: bool) -> None:
        moved.append((places.stride(0), keeps))
        whole(places, *all, keeps=keeps)

    whole = ops.move
    monkeypatch.setattr(ops, "move", move)
    monkeypatch.setattr("inference.gpu.rehearsal.forms", lambda model: [next(forms(model))])  # in seconds
    rehearse(model, filters=False)
    assert moved == [(before.stride(0), True), (before.stride(0), False)]
    assert torch.equal(states._places, before)


def test_states_are_freed_with_the_model_that_computes_over_them() -> None:
    """On a GPU one is made to measure memory by, and what is left then is the next one's."""
    level, _ = served("lfm2")
    assert level.make_model is not None
    model = level.make_model(1)
    states = weakref.ref(states_of(model))
    del model
    gc.collect()
    assert states() is None


def test_without_fusing_layers_it_is_said_whose_code_computes_them() -> None:
    options = Options(library=None, ops=device_ops(), max_total_tokens=64, fuse=False)
    found = bring_up(toy_model("lfm2").to(DEVICE), options)
    assert found.level is Level.SEQUENTIAL
    assert "fusing is switched off, so that layers that keep a state are their own code's" in found.reason
    assert "no kernels" not in found.reason


def test_layers_that_no_kernel_computes_are_served_one_sequence_at_a_time() -> None:
    options = Options(library=None, ops=device_ops(), max_total_tokens=64)
    found = bring_up(toy_model("kimi_linear").to(DEVICE), options)
    assert found.level is Level.SEQUENTIAL
    assert "keep a state for which there are no kernels for GPUs" in found.reason
