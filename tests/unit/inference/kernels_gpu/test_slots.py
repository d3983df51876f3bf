from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.gpu.batch import Sampled
from inference.gpu.decoding import TorchAround, TritonAround
from inference.gpu.slots import DeviceState, MirroredTable
from inference.gpu.wishes import Wish
from inference.kv_cache.blocks import PAGE
from inference.sampling.recipe import MOST_COUNTED
from tests.unit.inference.triton_device import DEVICE

VOCABULARY = 24


def random_state(slots: int, pages: int, seed: int) -> DeviceState:
    generator = torch.Generator().manual_seed(seed)
    state = DeviceState(MirroredTable(slots, pages), torch.device(DEVICE), VOCABULARY)

    def some(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    state.tables[:slots] = some(0, 10_000, slots, pages).int().to(DEVICE)
    state.tokens[:slots] = some(0, 200_000, slots).to(DEVICE)
    state.lengths[:slots] = some(1, pages * PAGE + 1, slots).int().to(DEVICE)
    state.seeds[:slots] = some(-(2**63), 2**63 - 1, slots).to(DEVICE)
    state.temperatures[:slots] = torch.rand(slots, generator=generator).to(DEVICE)
    state.warped[:slots] = (some(0, 2, slots) > 0).to(DEVICE)
    assert state.wishes is not None
    state.wishes.table[:slots, Wish.PENALISED] = some(0, 2, slots).double().to(DEVICE)
    marks = some(0, 3, slots, VOCABULARY) * some(0, 2, slots, 1) + some(0, 2, slots, 1) * (MOST_COUNTED - 1)
    state.wishes.marks[:slots] = marks.clamp(max=MOST_COUNTED).short().to(DEVICE)
    return state


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 300), st.integers(0, 5), st.integers(1, 4), st.integers(0, 2**31))
def test_kernels_read_and_write_the_slots_as_torch_does(
    slots: int, padding: int, pages: int, seed: int
) -> None:
    ours, theirs = (random_state(slots, pages, seed) for _ in range(2))
    generator = torch.Generator().manual_seed(seed)
    picked = torch.cat([torch.randperm(slots, generator=generator), torch.full((padding,), slots)])
    picked = picked.int().to(DEVICE)
    count = len(picked)
    tokens = torch.randint(0, 200_000, (count,), generator=generator).to(DEVICE)
    logprobs = -torch.rand(count, generator=generator).to(DEVICE)
    logprobs[0] = torch.nan
    sampled = Sampled(tokens, logprobs, logprobs == logprobs)
    found = []
    for around, state in ((TritonAround(), ours), (TorchAround(), theirs)):
        begun = around.begin(state, picked)
        drawn = torch.zeros(count, 2, dtype=torch.float64, device=DEVICE)
        around.end(state, picked, begun, sampled, drawn)
        draws = begun.draws
        found.append(
            [
                *(begun.ids[:slots], begun.positions, begun.places, begun.lengths, drawn),
                *(draws.seeds, draws.positions, draws.temperatures, draws.warped),
                *(state.tokens[:slots], state.previous[:slots], state.lengths),
            ]
        )
    for our, their in zip(*found, strict=True):
        assert our.dtype == their.dtype
        assert torch.equal(our.nan_to_num(), their.nan_to_num())
    assert torch.isnan(found[0][4][0, 1])
    assert (found[0][2][slots:] == -1).all()
    assert ours.lengths[slots] == 0


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 300), st.integers(0, 5), st.integers(0, 2**31))
def test_tokens_chosen_anew_are_kept_and_counted_as_torch_does(slots: int, padding: int, seed: int) -> None:
    ours, theirs = (random_state(slots, 2, seed) for _ in range(2))
    generator = torch.Generator().manual_seed(seed)
    picked = torch.cat([torch.randperm(slots, generator=generator), torch.full((padding,), slots)])
    tokens = torch.randint(0, VOCABULARY, (len(picked),), generator=generator)
    drawn = torch.stack([tokens, -torch.rand(len(picked), generator=generator)], 1).double().to(DEVICE)
    for around, state in ((TritonAround(), ours), (TorchAround(), theirs)):
        around.settle(state, state.wish(picked.int().to(DEVICE), ahead=1), drawn)
    assert torch.equal(ours.tokens[:slots], theirs.tokens[:slots])
    assert ours.wishes is not None
    assert theirs.wishes is not None
    assert torch.equal(ours.wishes.marks, theirs.wishes.marks)
    assert not ours.wishes.marks[slots].any()
