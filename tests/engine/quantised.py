"""Toys whose linears are quantised here, number by number as each format is defined, and what they stand for.

Nothing here is shared with what reads them: words are put together by loops over single numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from tests.engine.models import save_model

Floats = NDArray[np.float32]
Whole = NDArray[np.int64]
Packed = tuple[dict[str, Tensor], Floats]  # tensors by what follows the module's name, and the weight
Packer = Callable[[Floats, np.random.Generator], Packed]

_NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
        *(0.7229568362236023, 1.0),
    ],
    dtype=np.float32,
)
# What was packed of a family: number by number that takes a second, and many tests save the same
_packed: dict[tuple[object, ...], tuple[dict[str, Tensor], dict[str, Tensor]]] = {}


@dataclass(frozen=True, slots=True)
class Format:
    """A way to store weights."""

    packer: Packer
    settings: Mapping[str, Any]  # config.json's quantization_config
    dtype: torch.dtype = torch.float16  # of the model
    extra: Mapping[str, Tensor] = field(default_factory=dict)  # tensors that no weight is made of


def save_quantised(
    family: str,
    directory: Path,
    form: Format,
    keep: tuple[str, ...] = ("lm_head", "router", "gate.weight"),
    *,
    rounded: bool = True,
) -> PreTrainedModel:
    """Return a toy that holds what its quantised files in `directory` stand for, in 16 bits if `rounded`."""
    model = save_model(family, directory).to(form.dtype)
    model.save_pretrained(directory)  # experts as matrices, as the hub has them
    key = (family, form.packer, form.dtype, keep, rounded)
    if key not in _packed:
        as_dtype = form.dtype if rounded else torch.float32
        stored = load_file(directory / "model.safetensors")
        _packed[key] = _pack(stored, form, keep, as_dtype, turned=family == "gpt2")
    files, plain = {**form.extra, **_packed[key][0]}, _packed[key][1]
    save_file(plain, directory / "model.safetensors", metadata={"format": "pt"})
    oracle = type(model).from_pretrained(directory, dtype=torch.float32).eval()
    save_file(
        {name: each.contiguous() for name, each in files.items()},
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    describe(directory, quantization_config=dict(form.settings), dtype=str(form.dtype).removeprefix("torch."))
    return oracle


def _pack(
    stored: dict[str, Tensor], form: Format, keep: tuple[str, ...], dtype: torch.dtype, *, turned: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the files' tensors, and what they stand for; `turned`: weights are (in, out), as GPT-2's."""
    random, files, plain = np.random.default_rng(5), {}, {}
    for name, tensor in stored.items():
        plain[name] = tensor
        is_linear = tensor.dim() == 2 and name.endswith(".weight") and "embed" not in name
        if not is_linear or any(each in name for each in keep):
            files[name] = tensor
            continue
        weight = tensor.float().numpy()
        packed, expanded = form.packer(weight.T.copy() if turned else weight, random)
        files |= {name.removesuffix("weight") + suffix: each for suffix, each in packed.items()}
        plain[name] = torch.from_numpy(expanded.T.copy() if turned else expanded).to(dtype)
    return files, plain


def describe(directory: Path, **members: Any) -> None:
    """Change members of a model's config.json."""
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | members))


def words(numbers: Whole, bits: int) -> Tensor:
    """Return rows of numbers as one row of words each: lowest bits first, without gaps."""
    rows, count = numbers.shape
    found = np.zeros((rows, -(-count * bits // 32)), dtype=np.uint32)
    for row in range(rows):
        stream = 0
        for at in range(count):
            assert 0 <= numbers[row, at] < 2**bits
            stream |= int(numbers[row, at]) << (at * bits)
        for word in range(found.shape[1]):
            found[row, word] = (stream >> (32 * word)) & 0xFFFFFFFF
    return torch.from_numpy(found.view(np.int32).copy())


def whole(
    weight: Floats,
    bits: int,
    groups: NDArray[np.int64],
    scales_in: Any = np.float16,
    *,
    symmetric: bool = False,
) -> tuple[Any, ...]:
    """Return numbers (out, in), scales and zero points (out, groups), and the weight that they stand for.

    `symmetric`: zero points are in the middle.
    """
    rows, columns = weight.shape
    count = int(groups.max()) + 1
    scales, zeros = np.zeros((rows, count), np.float32), np.zeros((rows, count), np.int64)
    numbers, expanded = np.zeros((rows, columns), np.int64), np.zeros((rows, columns), np.float32)
    for row in range(rows):
        for group in range(count):
            own = np.flatnonzero(groups == group)
            low, high = min(weight[row, own].min(), 0.0), max(weight[row, own].max(), 0.0)
            if symmetric:
                low, high = min(low, -high), max(high, -low)
            scale = np.float32(scales_in(max((high - low) / (2**bits - 1), 1e-3)))
            zero = 2 ** (bits - 1) if symmetric else min(round(-low / scale), 2**bits - 1)
            scales[row, group], zeros[row, group] = scale, zero
            for column in own:
                number = min(max(round(weight[row, column] / scale) + zero, 0), 2**bits - 1)
                numbers[row, column] = number
                expanded[row, column] = np.float32(number - zero) * scale
    return numbers, scales, zeros, expanded


def gptq(
    bits: int,
    size: int,
    *,
    order: bool = False,
    stored_less: int = 1,
    g_idx: bool = True,
    symmetric: bool = False,
) -> Packer:
    """Return what packs GPTQ; `order`: groups are of inputs that don't lie side by side."""

    def pack(weight: Floats, random: np.random.Generator) -> Packed:
        columns = weight.shape[1]
        groups = np.arange(columns) // (columns if size == -1 else size)
        if order:
            random.shuffle(groups)
        numbers, scales, zeros, expanded = whole(weight, bits, groups, symmetric=symmetric)
        found = {
            "qweight": words(numbers, bits).T,
            "qzeros": words((zeros.T - stored_less) % 2**bits, bits),
            "scales": torch.from_numpy(scales.T.astype(np.float16)),
        }
        if g_idx:
            found["g_idx"] = torch.from_numpy(groups.astype(np.int32))
        return found, expanded

    return pack


def awq(size: int, form: str = "gemm") -> Packer:
    """Return what packs AWQ."""

    def in_words(numbers: Whole) -> Tensor:  # eight outputs in a word: 0, 2, 4, 6, 1, 3, 5, 7 from the lowest
        turned = np.zeros_like(numbers)
        for start in range(0, numbers.shape[1], 8):
            for place, at in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
                turned[:, start + place] = numbers[:, start + at]
        return words(turned, 4)

    def pack(weight: Floats, random: np.random.Generator) -> Packed:
        groups = np.arange(weight.shape[1]) // size
        numbers, scales, zeros, expanded = whole(weight, 4, groups)
        if form == "gemv":
            room = 8 * (-(-scales.shape[1] // 8))  # groups, filled up to whole words
            wider = np.zeros((len(scales), room), np.float16)
            wider[:, : scales.shape[1]] = scales
            kept = np.zeros((len(scales), room), np.int64)
            kept[:, : zeros.shape[1]] = zeros
            return {
                "qweight": words(numbers, 4),
                "qzeros": words(kept, 4),
                "scales": torch.from_numpy(wider),
            }, expanded
        return {
            "qweight": in_words(numbers.T),
            "qzeros": in_words(zeros.T),
            "scales": torch.from_numpy(scales.T.astype(np.float16)),
        }, expanded

    return pack


def fp8(block: tuple[int, int] | None, name: str = "weight_scale_inv", *, exponents: bool = False) -> Packer:
    """Return what packs FP8: a scale for each block, for each row (0 columns) or for all (None)."""

    def pack(weight: Floats, random: np.random.Generator) -> Packed:
        rows, columns = weight.shape
        high, wide = block or (rows, columns)
        wide = wide or columns
        scale = np.zeros((-(-rows // high), -(-columns // wide)), np.float32)
        numbers, expanded = torch.zeros(rows, columns), np.zeros_like(weight)
        for top in range(scale.shape[0]):
            for left in range(scale.shape[1]):
                part = np.s_[top * high : (top + 1) * high, left * wide : (left + 1) * wide]
                own = np.float32(np.abs(weight[part]).max() / 448)
                if exponents:
                    own = np.float32(2.0 ** math.ceil(math.log2(own)))
                scale[top, left] = own
                stored = torch.from_numpy(weight[part] / own).to(torch.float8_e4m3fn).float()
                numbers[part] = stored
                expanded[part] = stored.numpy() * own
        kept = torch.from_numpy(scale)
        if exponents:
            kept = (torch.log2(kept) + 127).to(torch.uint8)
        if block is None:
            kept = kept.view(())
        return {"weight": numbers.to(torch.float8_e4m3fn), name: kept}, expanded

    return pack


def bnb_8(weight: Floats, random: np.random.Generator) -> Packed:
    """Pack as bitsandbytes does in 8 bits."""
    largest = np.abs(weight).max(1)
    numbers = np.rint(weight / largest[:, None] * 127).astype(np.int8)
    expanded = numbers.astype(np.float32) * largest[:, None] / np.float32(127)
    return {
        "weight": torch.from_numpy(numbers),
        "SCB": torch.from_numpy(largest),
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }, expanded


def bnb_4(block: int, *, nested: int | None = None) -> Packer:
    """Return what packs as bitsandbytes does in NF4; `nested`: with scales in 8 bits that share their own."""

    def pack(weight: Floats, random: np.random.Generator) -> Packed:
        flat = weight.flatten()
        largest = np.array(
            [np.abs(flat[at : at + block]).max() for at in range(0, len(flat), block)], np.float32
        )
        state: dict[str, Any] = {
            "quant_type": "nf4",
            "blocksize": block,
            "dtype": "float16",
            "shape": list(weight.shape),
        }
        tensors: dict[str, Tensor] = {}
        if nested is None:
            tensors["weight.absmax"] = torch.from_numpy(largest)
        else:
            offset = float(largest.mean())
            levels = np.linspace(-1, 1, 256, dtype=np.float32)
            outer, inner = [], []
            for at in range(0, len(largest), nested):
                part = largest[at : at + nested] - np.float32(offset)
                outer.append(np.abs(part).max())
                inner += [int(np.abs(levels - each / outer[-1]).argmin()) for each in part]
            largest = np.array(
                [levels[each] * outer[at // nested] + np.float32(offset) for at, each in enumerate(inner)],
                np.float32,
            )
            state |= {"nested_blocksize": nested, "nested_dtype": "float32", "nested_offset": offset}
            tensors |= {
                "weight.absmax": torch.tensor(inner, dtype=torch.uint8),
                "weight.nested_absmax": torch.tensor(np.array(outer, np.float32)),
                "weight.nested_quant_map": torch.from_numpy(levels),
            }
        numbers = [int(np.abs(_NF4 - each / largest[at // block]).argmin()) for at, each in enumerate(flat)]
        octets = [numbers[at] << 4 | numbers[at + 1] for at in range(0, len(numbers), 2)]
        expanded = np.array(
            [_NF4[each] * largest[at // block] for at, each in enumerate(numbers)], np.float32
        )
        tensors |= {
            "weight": torch.tensor(octets, dtype=torch.uint8).view(-1, 1),
            "weight.quant_map": torch.tensor(_NF4.tolist()),
            "weight.quant_state.bitsandbytes__nf4": torch.tensor(
                [*json.dumps(state).encode()], dtype=torch.uint8
            ),
        }
        return tensors, expanded.reshape(weight.shape)

    return pack


def in_words_with_scales(bits: int, size: int, *, zeros: bool) -> Packer:
    """Return what packs as compressed-tensors' `pack-quantized`, with zero points or around the middle."""

    def pack(weight: Floats, random: np.random.Generator) -> Packed:
        rows, columns = weight.shape
        groups = np.arange(columns) // (size or columns)
        middle = 2 ** (bits - 1)
        if zeros:
            numbers, scales, points, expanded = whole(weight, bits, groups)
        else:
            count = int(groups.max()) + 1
            scales = np.zeros((rows, count), np.float32)
            for group in range(count):
                largest = np.abs(weight[:, groups == group]).max(1)
                scales[:, group] = (largest / (middle - 1)).astype(np.float16)
            numbers = np.rint(weight / scales[:, groups]).astype(np.int64) + middle
            numbers = np.clip(numbers, 0, 2**bits - 1)
            expanded = ((numbers - middle) * scales[:, groups]).astype(np.float32)
        found = {
            "weight_packed": words(numbers, bits),
            "weight_scale": torch.from_numpy(scales.astype(np.float16)),
            "weight_shape": torch.tensor([rows, columns]),
        }
        if zeros:
            found["weight_zero_point"] = words(points.T, bits).T
        return found, expanded

    return pack


def int8_rows(weight: Floats, random: np.random.Generator) -> Packed:
    """Pack as compressed-tensors' `int-quantized`, a scale for each row."""
    scale = (np.abs(weight).max(1, keepdims=True) / 127).astype(np.float32)
    numbers = np.rint(weight / scale).astype(np.int8)
    expanded = numbers.astype(np.float32) * scale
    return {"weight": torch.from_numpy(numbers), "weight_scale": torch.from_numpy(scale)}, expanded
