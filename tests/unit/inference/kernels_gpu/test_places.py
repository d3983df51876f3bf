"""Where states are: Triton's kernels find and move them as torch does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.gpu import torch_states
from inference.gpu.batch import DeviceBatch
from inference.gpu.recurrent import LOST
from inference.kernels.gpu.places import find_places, move
from tests.unit.inference.triton_device import DEVICE

SLOTS = 6
HELD = st.lists(st.tuples(st.integers(-1, 9), st.integers(-1, 9)), min_size=SLOTS, max_size=SLOTS)
# By slot: how many tokens are known before, and how many the step computes; none: padding
PIECES = st.dictionaries(
    st.integers(0, SLOTS - 1), st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1
)


def ints(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def batch(pieces: dict[int, tuple[int, int]]) -> DeviceBatch:
    sizes = [max(size, 1) for _, size in pieces.values()]
    lengths = [before + size if size else 0 for before, size in pieces.values()]
    starts = [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    none = torch.empty(0, dtype=torch.int64, device=DEVICE)
    return DeviceBatch(
        ids=none,
        positions=none,
        places=none,
        tables=ints([[0]] * SLOTS),
        slots=ints(list(pieces)),
        starts=ints(starts),
        lengths=ints(lengths),
        query_blocks=ints([[0], [0]]),
        tile=1,
        rows=None,
        longest=max(sizes),
        splits=1,
    )


@settings(deadline=None)
@given(HELD, PIECES)
def test_places_are_those_that_have_read_what_comes_before(
    held: list[tuple[int, int]], pieces: dict[int, tuple[int, int]]
) -> None:
    step, found, expected = batch(pieces), ints(held), ints(held)
    reads, writes = find_places(step.slots, step.starts, step.lengths, found)
    runs = torch_states.find_places(step, expected)
    assert reads.tolist() == runs.reads.tolist()
    assert writes.tolist() == runs.writes.tolist()
    assert found.tolist() == expected.tolist()
    for (slot, (before, size)), read, write in zip(
        pieces.items(), reads.tolist(), writes.tolist(), strict=True
    ):
        if not size:
            assert (read, write) == (-1, -1)
            continue
        assert write // 2 == slot
        assert write != read
        assert found[slot, write % 2] == before + size
        if not before:
            assert read == -1
        elif before in held[slot]:
            assert read // 2 == slot
            assert held[slot][read % 2] == before
        else:
            assert read == LOST


@pytest.mark.parametrize("keeps", [True, False])
def test_states_are_moved_and_of_one_that_is_not_there_no_number_is_kept(keeps: bool) -> None:
    numbers = 5000  # more than a program's
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(2 * SLOTS + 3, numbers, generator=generator).to(DEVICE)
    held = ints([[4, 5], [5, 4], [7, 8], [0, 0], [0, 0], [0, 0]])
    given = ints([0, 1, 2]), ints([12, 14, 13]), ints([5, 5, 5])
    found, expected = [(states.clone(), held.clone()) for _ in range(2)]
    move(*found, *given, keeps=keeps)
    torch_states.move(*expected, *given, keeps=keeps)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.nan_to_num(nan=9.0), other.nan_to_num(nan=9.0))
    if keeps:
        assert torch.equal(found[0][12], states[1])
        assert torch.equal(found[0][14], states[2])
        assert found[0][13].isnan().all()
    else:
        assert torch.equal(found[0][2], states[14])
        assert found[1][:3].tolist() == [[5, -1]] * 3
