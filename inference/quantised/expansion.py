"""A weight that several of a checkpoint's tensors make, as their headers describe it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inference.errors import ModelUnavailable
from inference.files.safetensors import Tensor
from inference.quantised.codes import Codes

if TYPE_CHECKING:
    import torch

BLOCK = 1024 * 1024  # numbers that a thread expands at once

Parts = Mapping[str, "torch.Tensor"]
Expand = Callable[[Parts, "torch.Tensor"], None]  # fills the weight, whatever its dtype
ReadCodes = Callable[[Parts], Codes]
ReadExperts = Callable[[Parts], "list[Codes]"]
Read = Callable[[str], "torch.Tensor"]  # a tensor of the files, by its name


@dataclass(frozen=True, slots=True, eq=False)
class Expansion:
    """How one weight is made of the files' tensors."""

    shape: tuple[int, ...]
    parts: Mapping[str, str]  # names in the files, by what they are to `expand`
    expand: Expand
    codes: ReadCodes | None = None  # the same in few bits, if it is stored so, and can be computed with so
    codes_bytes: int = 0  # that this takes, but for what its last panel or block lacks
    bits: int = 4  # of a code
    kind: str = ""  # of its codes, where there are several: those of other kinds can't be joined with it
    experts: ReadExperts | None = None  # as `codes`, of a weight that has each expert's (outputs, inputs)

    @property
    def count(self) -> int:
        """Return how many numbers the weight has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a method's reader makes of a checkpoint."""

    weights: dict[str, Expansion] = field(default_factory=dict)  # by the weights' names
    idle: set[str] = field(default_factory=set)  # tensors without effect on weights
    notes: set[str] = field(default_factory=set)  # variants that were met, for a person

    def used(self) -> set[str]:
        """Return the names of the files' tensors that no model is to be given."""
        return self.idle | {name for each in self.weights.values() for name in each.parts.values()}


class Table:
    """A checkpoint's tensors by name, asked for by who knows what they must be."""

    def __init__(self, tensors: Mapping[str, Tensor], said: str, read: Read) -> None:
        self.tensors = tensors
        self._said = said  # how the files are quantised
        self._read = read

    def ending(self, suffix: str) -> Iterator[tuple[str, str]]:
        """Yield the name of each tensor with an ending, and what stands before that."""
        for name in self.tensors:
            if name.endswith(suffix):
                yield name, name.removesuffix(suffix)

    def get(self, name: str, dtypes: Collection[str], shape: tuple[int | None, ...] | None = None) -> Tensor:
        """Return a tensor; raise ModelUnavailable if it isn't there, or of another dtype or shape.

        In `shape` None stands for any number, and None in its place for any shape.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise self.refusal(f"lack `{name}`")
        fits = shape is None or (
            len(shape) == len(tensor.shape)
            and all(want in (None, have) for want, have in zip(shape, tensor.shape, strict=True))
        )
        if tensor.dtype not in dtypes or not fits or 0 in tensor.shape:
            wanted = f" and {_sized(shape)}" if shape is not None else ""
            raise self.refusal(
                f"have `{name}` in {tensor.dtype} and {_sized(tensor.shape)}, and not in "
                f"{' or '.join(sorted(dtypes))}{wanted}"
            )
        return tensor

    def content(self, name: str) -> torch.Tensor:
        """Return the numbers of a tensor, which should be small."""
        return self._read(name)

    def refusal(self, what: str) -> ModelUnavailable:
        """Return the error of a checkpoint whose files are, have or lack something."""
        return ModelUnavailable(
            f"The model is quantised ({self._said}), and its files {what}: they aren't whole, or of a "
            "variant that isn't known; download them again, or give the model that they were made of"
        )


def spans(length: int, each: int, multiple: int = 1) -> Iterator[slice]:
    """Yield the pieces of an axis in which so many items, each of some numbers, are expanded at once."""
    step = max(BLOCK // max(each, 1) // multiple, 1) * multiple
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def _sized(shape: tuple[int | None, ...] | None) -> str:
    return "x".join("any" if each is None else str(each) for each in shape or ()) or "one number"
