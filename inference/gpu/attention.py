"""A model's own code on a device, over the paged attention of `Ops`: for layers of any other shape.

Beside attention two things are swapped where that changes nothing: linears that are given the same
tensor are one, and root-mean-square norms are one kernel each.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Several
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.gpu.batch import DeviceBatch
from inference.gpu.cache import device_cache
from inference.gpu.experts import DeviceExperts
from inference.gpu.linears import Deadline, Multiplier, SwappedLinear, graph_seconds
from inference.gpu.lora import DeviceAdapting
from inference.gpu.mlps import SwappedMlp
from inference.gpu.ops import HeadShape, Ops
from inference.gpu.own_linears import InvariantLinears
from inference.gpu.states import DeviceStates
from inference.gpu.swaps import Places, Swapped, swap_modules
from inference.kernels.reference import Attention
from inference.models.attending import install
from inference.models.counted import Positions
from inference.models.layers import norm_weight
from inference.models.paged import Probed
from inference.recurrent.modules import StateModule
from inference.shortage import is_shortage
from inference.vision.eyes import Eyes

LOG = logging.getLogger(__name__)

_WARNS = "warn_if_padding_and_no_attention_mask"  # a method of transformers' models


class PagedModel:
    """The model: a `DeviceModel`."""

    def __init__(
        self,
        model: PreTrainedModel,
        probed: dict[nn.Module, Probed],
        multiply: Multiplier,
        dtype: torch.dtype,
        adapting: DeviceAdapting | None,
        eyes: Eyes | None,
        rebuilt: Mapping[nn.Module, StateModule],
        blocks: int,
    ) -> None:
        self.ops = multiply.ops
        self.device = model.device
        self.dtype = dtype
        self._model = model
        self._multiply = multiply
        self._adapting = adapting
        self._eyes = eyes
        self.adapts = adapting is not None
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._positions = Positions(model)
        _silence(model)
        shapes = [each.shape for each in probed.values()]
        self.caches = device_cache(shapes, blocks, self.dtype, self.device)
        for index, module in enumerate(probed):
            install(module, _Layer(self, index))
        self.states = DeviceStates(rebuilt, self.ops, self.device) if rebuilt else None
        self._heads = HeadShape(  # of no attention at all: any
            group=max((each.heads // each.shape.kv_heads for each in probed.values()), default=1),
            kv_heads=min((shape.kv_heads for shape in shapes), default=1),
            dim=max((max(shape.key_dim, shape.value_dim) for shape in shapes), default=1),
            itemsize=self.dtype.itemsize,
            latent=bool(shapes) and all(shape.latent for shape in shapes),
        )
        self.batch: DeviceBatch | None = None  # while a forward pass runs

    def tile(self, longest: int) -> int:
        """Return how many queries of a sequence one program of attention computes."""
        return self.ops.tile(self._heads, longest)

    def splits(self, sequences: int, longest: int) -> int:
        """Return into how many parts attention cuts the keys."""
        return self.ops.splits(self._heads, sequences, longest)

    def forward(self, batch: DeviceBatch) -> Tensor:
        """Return the logits (R, vocabulary)."""
        self.batch = batch
        if self._adapting is not None:
            self._adapting.adapters = batch.adapters
        rows = {"logits_to_keep": batch.rows} if self._selects and batch.rows is not None else {}
        images = batch.images
        try:
            rows_of = None if images is None else (images.at, images.embedded)
            with ExitStack() as stack:
                if self.ops.invariant:
                    stack.enter_context(InvariantLinears(self.ops))
                if self._eyes is not None:
                    stack.enter_context(self._eyes.giving(rows_of))
                if self.states is not None:
                    stack.enter_context(self.states.during(batch))
                output = self._model(
                    input_ids=batch.ids[None],
                    use_cache=False,
                    **self._positions.of(batch.positions),
                    **rows,
                )
        finally:
            self.batch = None
        logits: Tensor = output.logits[0]
        return logits if rows or batch.rows is None else logits[batch.rows]

    def rehearse(self) -> None:
        """Launch what layers that keep states do, and experts, for several tokens."""
        if self.states is not None:
            self.states.rehearse()
        forms = {(each.up.form, each.down.form): each for each in self._experts()}
        for each in forms.values():
            each.rehearse()

    @torch.inference_mode()
    def warm_up(self, sizes: Several[int]) -> str:
        """Choose how each linear is computed for so many tokens; return the choice as a line."""
        if self.device.type != "cuda":
            return ""
        modules = list(self._model.modules())
        swapped = [each.linear for each in modules if isinstance(each, SwappedLinear)]
        gated = [each for each in modules if isinstance(each, SwappedMlp)]
        activation = gated[0].activation if gated else ""  # of others none is measured: they are rare
        gates = [each.joint for each in gated if each.activation == activation]
        said, deadline = [], Deadline()
        if experts := self._experts():  # most of a mixture's weights
            multiply = experts[0].multiply
            multiply.tune([each for one in experts for each in one.linears], sizes, graph_seconds, deadline)
            said.append(str(multiply))
        self._multiply.tune(swapped, gates, activation, sizes, graph_seconds, deadline)
        return ". ".join(filter(None, [*said, str(self._multiply)]))

    def _experts(self) -> list[DeviceExperts]:
        return [each for each in self._model.modules() if isinstance(each, DeviceExperts)]


class _Layer:
    """One attention module's part of the cache; the module, which outlives the cache, doesn't hold it."""

    def __init__(self, model: PagedModel, index: int) -> None:
        self._model = weakref.ref(model)
        self._index = index

    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor:
        model = self._model()
        assert model is not None, "it is the model that runs the module"
        batch, cache, ops = model.batch, model.caches[self._index], model.ops
        assert batch is not None, "the model's forward sets it"
        ops.write(key, None if how.latent else value, batch.places, *cache)
        return ops.paged_attention(query, *cache, batch, how)


def _silence(model: PreTrainedModel) -> None:
    """Have a model's code look for no padding in its ids, to warn of it: it would wait for them."""
    for module in model.modules():
        if hasattr(module, _WARNS):
            setattr(module, _WARNS, _warn_of_nothing)


def _warn_of_nothing(*_: object) -> None:
    """Packed sequences have no padding."""


class SwappedNorm(Swapped):
    """Stands for a root-mean-square norm."""

    def __init__(self, ops: Ops, own: nn.Module) -> None:
        super().__init__(own)
        self._weight, self._eps = norm_weight(own)
        self._ops = ops

    @property
    def weight(self) -> Tensor:
        """Return the norm's own: some models ask for its dtype."""
        weight: Tensor = self.own.weight
        return weight

    def forward(self, given: Tensor) -> Tensor:
        """Return the same shape."""
        rows = given.reshape(-1, given.shape[-1])
        return self._ops.rms_norm(rows, self._weight, self._eps).view(given.shape)


def swap_norms(model: nn.Module, ops: Ops, but: Collection[nn.Module] = ()) -> Places:
    """Replace all root-mean-square norms, found by trying them, and return their places.

    `but`: modules whose own ones stay: they may be given more than one tensor.
    """

    def make(module: nn.Module) -> SwappedNorm | None:
        if [each for each, _ in module.named_parameters()] != ["weight"]:
            return None
        try:
            return SwappedNorm(ops, module)
        except Exception as error:  # any module may want to be given something else than one tensor
            if is_shortage(error):
                raise
            LOG.debug("`%s` stays as it is: %s", type(module).__name__, error)
            return None

    return swap_modules(model, make, but)
