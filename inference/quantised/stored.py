"""A checkpoint that was quantised before: what the model is to be given in its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from safetensors import safe_open

from inference.errors import ModelUnavailable
from inference.files.safetensors import Tensor
from inference.quantised import awq, bnb, compressed, float8, gptq, mxfp4
from inference.quantised.codes import Codes
from inference.quantised.expansion import BLOCK, Expansion, Found, Table
from inference.quantised.method import NARROW, NARROW_FLOATS, ORIGINAL, Method

READERS: Mapping[str, Callable[[Table, Method], Found]] = {
    "gptq": gptq.find,
    "awq": awq.find,
    "fp8": float8.find,
    "fbgemm_fp8": float8.find,
    "mxfp8": float8.find,
    "modelopt": float8.find_modelopt,
    "compressed-tensors": compressed.find,
    "bitsandbytes": bnb.find,
    "mxfp4": mxfp4.find,
}
_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16}
_NAMES = {"F16": "float16", "BF16": "bfloat16"}
_ON_THE_WAY = 160  # bytes of each number that is being expanded, by all four of the loader's threads


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """What is known of quantised weights, and what they become."""

    method: Method
    weights: Mapping[str, Expansion]
    unread: frozenset[str]  # the files' tensors that the model isn't given
    dtype: str  # what the weights become, as safetensors calls it
    notes: tuple[str, ...]
    file_bytes: int  # of the tensors that make the weights

    def __str__(self) -> str:
        """Return what was found and what becomes of it as one line for a person."""
        return self.said()

    def said(self, kept: Collection[str] = ()) -> str:
        """Return the same where these of the weights stay in the bits that they have."""
        becomes = f"expanded to {_NAMES[self.dtype]}"
        if kept:
            bits = " and ".join(map(str, sorted({self.weights[name].bits for name in kept})))
            becomes = f"kept in {bits} bits" + (f", some {becomes}" if len(kept) < len(self.weights) else "")
        return f"{', '.join((self.method.name, *self.notes))}, {becomes}"

    @property
    def held_bytes(self) -> int:
        """Return what the weights take as they are expanded, all of them."""
        return sum(2 * each.count for each in self.weights.values())

    @property
    def passing_bytes(self) -> int:
        """Return what expanding takes beside the weights: the pieces that are on their way."""
        return min(BLOCK, max(each.count for each in self.weights.values())) * _ON_THE_WAY

    def tensors(self, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that the model is given, as headers would describe them."""
        kept = {name: each for name, each in stored.items() if name not in self.unread}
        made = {
            name: Tensor(self.dtype, each.shape, 0, 2 * each.count) for name, each in self.weights.items()
        }
        return kept | made


class Kept:
    """A weight that stays in few bits: a loader gets none of its numbers, and no memory is taken for them."""

    def __init__(self, expansion: Expansion, dtype: torch.dtype, read: Callable[[str], torch.Tensor]) -> None:
        self._expansion = expansion
        self._dtype = dtype
        self._read = read

    def __getitem__(self, part: EllipsisType) -> torch.Tensor:
        """Return what has the weight's shape, all of one number."""
        return torch.zeros(1, dtype=self._dtype).expand(self._expansion.shape)

    def codes(self) -> Codes:
        """Return the weight; raise ModelUnavailable if its tensors hold what can't be."""
        assert self._expansion.codes is not None, "only such weights are kept"
        return self._expansion.codes(self._parts())

    def experts(self) -> list[Codes]:
        """Return each expert's weight, of one that has those of all; raise ModelUnavailable likewise."""
        assert self._expansion.experts is not None, "only such weights are kept"
        return self._expansion.experts(self._parts())

    def _parts(self) -> dict[str, torch.Tensor]:
        return {role: self._read(name) for role, name in self._expansion.parts.items()}


class Weight:
    """A weight that is expanded when a loader takes all of it, as it takes a slice of a file."""

    def __init__(
        self,
        expansion: Expansion,
        dtype: torch.dtype,
        read: Callable[[str], torch.Tensor],
        *,
        turned: bool = False,
    ) -> None:
        """`turned`: the model has it as (in, out), and quantised it is (out, in) as any other."""
        self._expansion = expansion
        self._dtype = dtype
        self._read = read
        self._turned = turned

    def __getitem__(self, part: EllipsisType) -> torch.Tensor:
        """Return the weight; raise ModelUnavailable if its tensors hold what can't be."""
        parts = {role: self._read(name) for role, name in self._expansion.parts.items()}
        weight = _own_pages(self._expansion.shape, self._dtype)
        self._expansion.expand(parts, weight)
        return weight.T.contiguous() if self._turned else weight


def _own_pages(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in pages of its own, which go back to the system when it does.

    The allocator would keep them, of a thread that has ended, while the weights are packed into others.
    """
    pages = mmap(-1, math.prod(shape) * dtype.itemsize, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def find_stored(
    method: Method, files: Mapping[Path, Mapping[str, Tensor]], dtype: str | None
) -> Stored | None:
    """Return what a checkpoint's quantised weights are, None if it holds none; raise ModelUnavailable.

    `files` have their tensors by name, `dtype` is what config.json says that the model is in.
    """
    tensors = {name: each for table in files.values() for name, each in table.items()}
    owners = {name: file for file, table in files.items() for name in table}

    @cache
    def opened(file: Path) -> Any:  # once: a file's whole header is read each time
        return safe_open(file, framework="pt")

    def read(name: str) -> torch.Tensor:
        found: torch.Tensor = opened(owners[name]).get_tensor(name)
        return found

    found = READERS[method.name](Table(tensors, method.said, read), method)
    used = found.used()
    rest = {name: each for name, each in tensors.items() if name not in used}
    _check_rest(method, rest, alone=not found.weights)
    if not found.weights:
        return None
    parts = [tensors[name] for name in used - found.idle]
    common = "F16" if any(each.dtype == "F16" for each in parts) else "BF16"
    return Stored(
        method=method,
        weights=found.weights,
        unread=frozenset(used),
        dtype=dtype or common,
        notes=tuple(sorted(found.notes)),
        file_bytes=sum(each.stop - each.start for each in parts),
    )


@contextmanager
def expanded(
    stored: Stored,
    files: list[Path],
    turned: Collection[str] = (),
    kept: Collection[str] = (),
    kept_as: torch.dtype | None = None,
    withheld: Collection[str] = (),
) -> Iterator[tuple[dict[str, Any], dict[str, Kept]]]:
    """Have the files' tensors by name as a loader takes them, each quantised one expanded when it is.

    `turned`: the weights that the model has as (in, out), by its names; files may leave the first part out.
    `kept`: those that stay in few bits, as `Kept`; `kept_as` is what the loader would make of them. What
    stays so, and is `withheld` from the loader, is in the second mapping alone, which has all that is kept.
    """

    def turns(name: str) -> bool:
        return any(name.endswith(each) or each.endswith(f".{name}") for each in turned)

    with ExitStack() as stack:
        opened = [stack.enter_context(safe_open(file, framework="pt")) for file in files]
        held = [(name, each) for each in opened for name in each.keys()]  # noqa: SIM118 - it is no mapping
        slices = {name: each.get_slice(name) for name, each in held}  # which several threads may read at once
        plain = {name: each for name, each in slices.items() if name not in stored.unread}

        def read(name: str) -> torch.Tensor:
            found: torch.Tensor = slices[name][...]
            return found

        dtype = _DTYPES[stored.dtype]
        made: dict[str, Kept | Weight] = {
            name: Weight(each, dtype, read, turned=turns(name))
            for name, each in stored.weights.items()
            if name not in withheld
        }
        names = (*kept, *withheld)
        in_few = {name: Kept(stored.weights[name], kept_as or dtype, read) for name in names}
        yield plain | made | {name: in_few[name] for name in kept}, in_few


def _check_rest(method: Method, rest: Mapping[str, Tensor], *, alone: bool) -> None:
    """Raise ModelUnavailable if a weight is left in a form that would be taken for its numbers.

    `alone`: nothing was found, so that whatever is in a narrow form is of a variant that isn't known.
    """
    for name, tensor in rest.items():
        is_weight = len(tensor.shape) > 1 and (alone or name.endswith(("weight", "_proj")))
        if tensor.dtype.startswith(NARROW_FLOATS) or (is_weight and tensor.dtype in NARROW):
            raise ModelUnavailable(
                f"The model is quantised ({method.said}), and its files have `{name}` in {tensor.dtype}, "
                f"which isn't known of that method: {ORIGINAL}"
            )
