"""LoRA adapters beside a model: each token of a step is computed with one of them, or with none.

y = linear(x) + scale * up(down(x)) (Hu et al. 2021). The model's own weights stay as they are, so that any
number of adapters share them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from inference.files.adapters import WEIGHTS, AdapterFiles, refused
from inference.kernels.native_adapters import LowRank
from inference.models.layers import LayerParts, Linears
from inference.models.numberless import Numberless
from inference.models.per_layer import OF_MODEL
from inference.sequences.state import Pieces

Multiply = Callable[[Tensor], Tensor]  # (rows, k) -> (rows, n)
MakeLinear = Callable[[Tensor], Multiply]  # of a weight (n, k)

LOG = logging.getLogger(__name__)

USELESS = "text doesn't come through any of the linears that it adds to"

_SHOWN = 3  # linears in a message
# Parts by which models see, as earlier transformers called them: no text comes through them
_SEEING = re.compile(
    r"(^|\.)(vision_tower|vision_model|visual|multi_modal_projector|mm_projector|connector)\."
)
# What a path is called in models of another make: those that see keep their text model beside others
_OTHERWISE = (
    ("model.", "model.language_model."),
    ("model.language_model.", "model."),
    ("language_model.model.", "model.language_model."),
    ("language_model.model.", "model."),  # where the text model is served without its eyes
    ("model.", "language_model.model."),
)


@dataclass(frozen=True, slots=True, eq=False)
class Adapters:
    """Adapters that fit a model, by their places; weights are on the CPU."""

    names: tuple[str, ...]
    low_ranks: tuple[dict[str, LowRank], ...]  # of each: by the path of the model's linear

    def of(self, path: str) -> list[LowRank | None]:
        """Return what each adds to a linear."""
        return [each.get(path) for each in self.low_ranks]

    def release(self) -> None:
        """Forget the numbers, once whoever computes has its own."""
        for each in self.low_ranks:
            each.clear()

    @property
    def paths(self) -> list[str]:
        """Return the linears that any of them adds to."""
        return list(dict.fromkeys(path for each in self.low_ranks for path in each))

    def of_layers(self, model: nn.Module, layers: Sequence[LayerParts]) -> list[list[list[LowRank]]]:
        """Return what each adds to the linears of layers, merged as these are."""
        places = {module: path for path, module in model.named_modules()}
        found: list[list[list[LowRank]]] = [[] for _ in self.names]
        for group in (group for parts in layers for group in parts.places):
            for low_ranks, linears in zip(self.low_ranks, found, strict=True):
                linear, first = [], 0
                for path, size in [] if group is None else _placed(group, places):
                    low = low_ranks.get(path)
                    if low is not None:
                        order = None if group is None else group.order
                        up = low.up if order is None else low.up[order[first : first + size] - first]
                        linear.append(replace(low, up=up, first=first))
                    first += size
                linears.append(linear)
        return found


def _placed(group: Linears, places: Mapping[nn.Module, str]) -> Iterator[tuple[str, int]]:
    """Yield the paths of linears that are computed as one, and how many outputs each has."""
    for name, size in zip(group.names, group.sizes, strict=True):
        yield f"{places[group.parent]}.{name}", size


def fixed_linears(model: nn.Module, layers: Sequence[LayerParts]) -> frozenset[str]:
    """Return the linears that take nothing more: they choose or gate, read states, multiply latents."""
    known = {
        id(each.parent.get_submodule(name))
        for parts in layers
        for each in parts.linears
        for name in each.names
    }
    blocks = [parts.mixture.block for parts in layers if parts.mixture is not None]
    inside = {id(each) for block in blocks for each in block.modules()} - known
    others = [each for parts in layers for each, _ in parts.kept]
    others += [each for parts in layers if parts.per_layer is not None for each in parts.per_layer.linears]
    inside |= {id(each.parent.get_submodule(name)) for each in others for name in each.names}
    inside |= {id(each) for parts in layers if parts.latent is not None for each in parts.latent.modules}
    modules = dict(model.named_modules())
    if any(parts.per_layer is not None for parts in layers):
        inside |= {id(each) for path, each in modules.items() if path.rpartition(".")[2] == OF_MODEL}
    return frozenset(path for path, each in modules.items() if id(each) in inside and _size(each) is not None)


@dataclass(frozen=True, slots=True)
class Adaptable:
    """The linears of a model's layers, to which adapters can add, as they are before anything is changed."""

    kind: str  # of the model
    sizes: Mapping[str, tuple[int, int]]  # outputs and inputs, by the path of a linear

    @classmethod
    def of(cls, model: PreTrainedModel) -> Adaptable:
        """Return those of a model as it was loaded."""
        head = model.get_output_embeddings()
        modules = model.named_modules(remove_duplicate=False)
        sizes = {path: _size(module) for path, module in modules if module is not head}
        return cls(type(model).__name__, {path: size for path, size in sizes.items() if size is not None})


def _size(module: nn.Module) -> tuple[int, int] | None:
    if isinstance(module, Conv1D):
        return module.nf, module.nx
    return (module.out_features, module.in_features) if isinstance(module, nn.Linear) else None


def load_adapters(files: Sequence[AdapterFiles], model: PreTrainedModel) -> Adapters:
    """Return the adapters of a model as it was loaded; raise ModelUnavailable if one doesn't fit it."""
    linears = Adaptable.of(model) if files else Adaptable("", {})
    return Adapters(tuple(each.name for each in files), tuple(load_adapter(each, linears) for each in files))


def load_adapter(files: AdapterFiles, linears: Adaptable) -> dict[str, LowRank]:
    """Return what one adds to a model's linears, by their paths; raise ModelUnavailable if it doesn't fit."""
    stored = _tensors(files)
    found: dict[str, LowRank] = {}
    strange: list[str] = []
    seeing = 0
    for linear, (down, up) in files.tensors.items():
        path = _path(linears, linear)
        if path is None and _SEEING.search(linear):
            seeing += 1
            continue
        if path is None:
            strange.append(linear)
            continue
        if path in found:
            raise refused(files.name, f"it has `{path}` by two names: it is damaged")
        low = LowRank(_kept(stored[down]), _kept(stored[up]), files.scales[linear])
        _check_fits(files.name, path, low, linears.sizes[path])
        found[path] = low
    if seeing:
        LOG.warning(
            "The adapter %s adds to %d linears by which the model sees: not to these", files.name, seeing
        )
    if strange:
        shown = ", ".join(f"`{linear}`" for linear in strange[:_SHOWN])
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        raise refused(
            files.name,
            f"it adds to {shown}{more}, which are no linears of {linears.kind}'s layers: is it for another "
            "model?",
        )
    if seeing and not found:
        raise refused(files.name, USELESS)
    return found


def _kept(side: Tensor) -> Tensor:
    """Return what is stored in bfloat16 as it is, and all else in float32: a copy, as files may change."""
    return side.to(torch.bfloat16 if side.dtype is torch.bfloat16 else torch.float32, copy=True)


def _tensors(files: AdapterFiles) -> dict[str, Tensor]:
    try:
        # Not mapped into memory: who cuts a mapped file short ends whoever reads it
        stored = load((files.directory / WEIGHTS).read_bytes())
    except (SafetensorError, OSError) as error:
        raise refused(files.name, f"its `{WEIGHTS}` is damaged ({error}): get it again") from error
    if not stored.keys() >= {name for pair in files.tensors.values() for name in pair}:
        raise refused(files.name, f"its `{WEIGHTS}` was changed while the model was loaded")
    return stored


def _path(linears: Adaptable, linear: str) -> str | None:
    """Return the path of the model's linear that an adapter means; None if there is none in its layers."""
    others = (new + linear.removeprefix(old) for old, new in _OTHERWISE if linear.startswith(old))
    return next((path for path in (linear, *others) if path in linears.sizes), None)


def _check_fits(name: str, path: str, low: LowRank, size: tuple[int, int]) -> None:
    n, k = size
    if (low.up.shape[0], low.down.shape[1]) != (n, k):
        raise refused(
            name,
            f"it adds {low.up.shape[0]}x{low.down.shape[1]} numbers to `{path}`, which has {n}x{k}: it is "
            "for another model",
        )
    if not (low.down.isfinite().all() and low.up.isfinite().all()):
        raise refused(name, f"its weights of `{path}` are NaN or infinite: it is damaged")


class Adapting:
    """What the model's own code is told of a step: which tokens are computed with which adapter."""

    def __init__(self, adapters: Adapters, device: torch.device) -> None:
        self.adapters = adapters
        self._device = device
        self.tokens = 0  # of the step
        self.groups: list[tuple[int, Tensor]] = []  # adapters, and the step's rows that are theirs
        self._chosen: Tensor | None = None  # by which each of the step's tokens is computed; None: by none

    def begin(self, pieces: Pieces) -> None:
        """Take a step of packed tokens."""
        chosen = pieces.adapters
        self.tokens = len(pieces.ids)
        self._chosen = None if chosen is None else torch.from_numpy(chosen).to(self._device)
        self.groups = [] if self._chosen is None else _groups(self._chosen)

    def begin_rows(self, chosen: NDArray[np.int64]) -> None:
        """Take some of a step's tokens, with the adapter of each (tokens,): -1 is none."""
        self.tokens = len(chosen)
        self.groups = _groups(torch.from_numpy(chosen).to(self._device)) if (chosen >= 0).any() else []

    @contextmanager
    def within(self, rows: Tensor) -> Iterator[None]:
        """Have some of the step's tokens computed alone."""
        whole = self.tokens, self.groups
        self.tokens = len(rows)
        self.groups = [] if self._chosen is None else _groups(self._chosen[rows])
        try:
            yield
        finally:
            self.tokens, self.groups = whole

    def wrap(self, model: nn.Module, make: MakeLinear) -> None:
        """Have the model's linears add what the adapters do, `make` being how low ranks are multiplied."""
        for path in self.adapters.paths:
            parent, _, name = path.rpartition(".")
            owner = model.get_submodule(parent)
            ranks = [
                None if low is None else (make(low.down), _scaled(make(low.up), low.scale))
                for low in self.adapters.of(path)
            ]
            setattr(owner, name, AdaptedLinear(owner.get_submodule(name), ranks, self))


def _scaled(multiply: Multiply, scale: float) -> Multiply:
    return lambda x: multiply(x * scale)


def _groups(chosen: Tensor) -> list[tuple[int, Tensor]]:
    present = chosen.unique().tolist()
    return [(each, (chosen == each).nonzero()[:, 0]) for each in present if each >= 0]


class AdaptedLinear(nn.Module):
    """A linear, whatever computes it, and what adapters add to it."""

    def __init__(
        self, own: nn.Module, ranks: Sequence[tuple[Multiply, Multiply] | None], step: Adapting
    ) -> None:
        super().__init__()
        self.own = own
        self._ranks = ranks
        self._step = step

    @property
    def weight(self) -> Tensor:
        """Return one without numbers, of which some models' code asks the dtype: by it nothing is added."""
        weight: Tensor = self.own.weight
        return Numberless.of(weight.shape, weight.dtype)

    def forward(self, given: Tensor) -> Tensor:
        """Return (..., n) of (..., k), whose rows are the step's tokens."""
        found: Tensor = self.own(given)
        for adapter, rows in self._step.groups:
            pair = self._ranks[adapter]
            if pair is not None:
                x = given.reshape(-1, given.shape[-1])
                assert len(x) == self._step.tokens, "it is given a row for each of the step's tokens"
                down, up = pair
                added = up(down(x[rows])).to(found.dtype)
                # In place: a copy's rows needn't lie as far apart as these (kernels/native.py)
                found.view(-1, found.shape[-1]).index_add_(0, rows, added)
        return found
