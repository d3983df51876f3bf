"""Every kind of step run once before any request, so that none waits for a compiler later.

Triton compiles a kernel when it is first launched in a new form, which takes seconds. The forms of
steps differ by the tile of attention and by the number of its splits, and in nothing else that a
kernel is compiled for: sizes of batches, lengths and widths of tables are none. Linears of few rows
are compiled before they are measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from inference.gpu.batch import DeviceBatch, Draws
from inference.gpu.compiling import compile_together
from inference.gpu.model import DeviceModel
from inference.gpu.slots import DeviceState, MirroredTable

_MOST_SEQUENCES = 4096
_LONGEST = 1 << 16


@torch.inference_mode()
def rehearse(model: DeviceModel, *, filters: bool) -> None:
    """Run a step of each form, and choose a token, with `filters` by these, too; the cache stays as it is.

    Raises whatever a kernel raises that the device can't hold: before a request does.
    """
    run = partial(_run, model, filters=filters)
    compile_together(model.ops, run)
    run()


def forms(model: DeviceModel) -> Iterator[DeviceBatch]:
    """Yield steps of padding in each form that steps of the model can have."""
    splits = {model.splits(sequences, 1) for sequences in range(1, _MOST_SEQUENCES + 1)}
    for count in sorted(splits):
        yield _padding(model, 1, tile=model.tile(1), splits=count)
    longer = {model.tile(1 << power): 1 << power for power in range(1, _LONGEST.bit_length())}
    for tile, longest in longer.items():
        yield _padding(model, longest, tile=tile, splits=model.splits(1, longest))


def _run(model: DeviceModel, *, filters: bool) -> None:
    for batch in forms(model):
        logits = model.forward(batch)
        model.ops.sample(logits, _draws(len(logits), model.device))
    if filters:
        _shape(model, logits)
    model.rehearse()


def _padding(model: DeviceModel, longest: int, *, tile: int, splits: int) -> DeviceBatch:
    """Return a step of one token that belongs to nobody."""

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=model.device)

    token = torch.zeros(1, dtype=torch.int64, device=model.device)
    return DeviceBatch(
        ids=token,
        positions=token,
        places=token - 1,
        tables=zeros(1, 1),
        slots=zeros(1),
        starts=torch.arange(2, dtype=torch.int32, device=model.device),
        lengths=zeros(1),
        query_blocks=zeros(2, 1),
        tile=tile,
        rows=None if longest == 1 else token,
        longest=longest,
        splits=splits,
        adapters=zeros(1) if model.adapts else None,
    )


def _shape(model: DeviceModel, logits: Tensor) -> None:
    """Have tokens chosen by filters and penalties for rows of which none wishes any."""
    state = DeviceState(MirroredTable(1, 1), model.device, logits.shape[1])
    slots = torch.full((len(logits),), state.padding, dtype=torch.int32, device=model.device)
    drawn = torch.zeros((len(logits), 2), dtype=torch.float64, device=model.device)
    model.ops.shape(logits, state.wish(slots, ahead=1), drawn)


def _draws(rows: int, device: torch.device) -> Draws:
    zeros = torch.zeros(rows, dtype=torch.int64, device=device)
    return Draws(zeros, zeros, torch.zeros(rows, device=device), zeros.bool())
