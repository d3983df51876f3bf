"""A step's arrays on their way to a device: one copy from pinned memory, and nothing waits for it."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.gpu.batch import DeviceBatch, ImagePlaces, query_blocks
from inference.kv_cache.blocks import PAGE
from inference.sequences.seen import seen_in
from inference.sequences.state import Integers, Pieces

_ALIGNMENT = 16  # bytes: kernels are compiled anew for pointers that are aligned otherwise

_DTYPES = {np.dtype(np.int64): torch.int64, np.dtype(np.int32): torch.int32}


def upload(arrays: Several[NDArray[np.signedinteger[Any]]], device: torch.device) -> list[Tensor]:
    """Return int64 and int32 arrays as tensors of the same shapes on a device, by one copy.

    The copy is queued behind what the device does already. The arrays may be written again at once.
    """
    starts = np.cumsum([0, *(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays)]).tolist()
    staged = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    bytes_ = staged.numpy()
    for start, array in zip(starts, arrays, strict=False):
        bytes_[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    # torch's cache of pinned memory gives it to nobody else before the copy is made
    there = staged.to(device, non_blocking=True)
    return [
        there[start : start + array.nbytes].view(_DTYPES[array.dtype]).view(array.shape)
        for start, array in zip(starts, arrays, strict=False)
    ]


def pack_batch(
    pieces: Pieces, tables: Tensor, *, tile: int, splits: int, adapts: bool = False
) -> DeviceBatch:
    """Return a step as it is, without padding; `tables` (slots, pages) int32 are the slots' on the device.

    `adapts`: the model has adapters. The ids of decodes are what the host knows of them:
    `DeviceState.fill_in` puts in what it doesn't.
    """
    sizes = pieces.stops - pieces.starts
    slots, owners = pieces.slots, np.repeat(pieces.slots, sizes)
    pages = pieces.table.blocks[owners, pieces.positions // PAGE].astype(np.int64)
    wide = [pieces.ids, pieces.positions, pages * PAGE + pieces.positions % PAGE, pieces.rows]
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    narrow = [slots, starts, pieces.stops, query_blocks(sizes, tile)]
    if adapts:
        narrow.append(pieces.table.adapters[owners])
    sent = upload([*wide, *(array.astype(np.int32) for array in narrow)], tables.device)
    return DeviceBatch(
        ids=sent[0],
        positions=sent[1],
        places=sent[2],
        tables=tables,
        slots=sent[4],
        starts=sent[5],
        lengths=sent[6],
        query_blocks=sent[7],
        tile=tile,
        rows=sent[3],
        longest=int(sizes.max()),
        splits=splits,
        adapters=sent[8] if adapts else None,
        images=_images(pieces, tables.device),
    )


def _images(pieces: Pieces, device: torch.device) -> ImagePlaces | None:
    seen = seen_in(pieces)
    if seen is None or seen.rows is None:
        return None
    (at,) = upload([seen.at], device)
    rows = embedded = seen.rows.to(device)
    sights = pieces.table.sights
    if not all(sights[slot].plain for slot in pieces.slots.tolist() if slot in sights):
        given = seen_in(pieces, embedded=True)
        assert given is not None
        assert given.rows is not None, "there are as many as the others"
        embedded = given.rows.to(device)
    return ImagePlaces(at, rows, embedded)


def slots_of(pieces: Pieces) -> Integers:
    """Return the slots (n,) of the sequences that a step gives their next token."""
    count = len(pieces.decodes)
    if not pieces.prompts:
        return pieces.slots
    sampling = [chunk.sequence.slot for chunk in pieces.prompts if chunk.samples]
    return np.concatenate([pieces.slots[:count], np.array(sampling, dtype=np.int64)])
