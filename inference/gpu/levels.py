"""The ladder of levels on a device, its kernels being Triton's or torch's.

fused          the layers rebuilt over `Ops`, nine to twelve kernels each
paged+merged   the model's own code over paged attention; merged linears, norms in one kernel each
paged          the same with its linears as they are
and one sequence at a time, as everywhere.
"""

from __future__ import annotations

import logging
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from inference.gpu.attention import PagedModel, swap_norms
from inference.gpu.build import Stack, build_stack
from inference.gpu.expert_ways import ExpertMultiplier
from inference.gpu.experts import packed_experts, swap_experts
from inference.gpu.latents import swap_projections
from inference.gpu.linears import Multiplier, SwappedLinear, device_linear
from inference.gpu.lora import DeviceAdapting
from inference.gpu.mlps import swap_mlps
from inference.gpu.model import EagerRunner
from inference.gpu.ops import Ops
from inference.gpu.rehearsal import rehearse
from inference.gpu.state_kernels import DeviceStateKernels
from inference.gpu.swaps import put_modules_back
from inference.levels.ladder import Attempt, Climb
from inference.levels.latents import read_elsewhere
from inference.levels.options import Options
from inference.levels.served import FEW_BITS, Level, MakeModel, Served
from inference.models.layers import OtherShape
from inference.models.linears import Packed, pack_linears, packed_of, undo_swaps
from inference.quantised.codes import Codes
from inference.recurrent.cache import put_back
from inference.sequences.computing import Runner
from inference.shortage import is_shortage

LOG = logging.getLogger(__name__)


class DeviceClimb(Climb):
    """A model on a device on its way down."""

    def __init__(self, model: PreTrainedModel, options: Options, ops: Ops) -> None:
        super().__init__(model, options)
        self._ops = ops
        self._multiply = Multiplier(ops)
        self._experts = ExpertMultiplier(self._multiply)
        self._adapts = None if options.adapters is None else DeviceAdapting()

    @property
    def rounds(self) -> bool:
        """Return whether it computes in 16 bits, so that nearly right will do."""
        return self.options.dtype != torch.float32

    def fused(self) -> Served | None:
        """Return the model at the level `fused`."""
        if not self.packs_steps:
            return None
        if self.keeping:
            self.reasons.append(f"its layers can't be fused: {len(self.keeping)} of them keep a state")
            return None
        if not self.options.fuse:
            self.reasons.append("fusing layers is switched off")
            return None
        stack = self._build()
        if stack is None:
            return None
        if self.options.adapters is not None:
            stack.adapt(self.model, self.options.adapters)
        positions, trims = self.options.max_total_tokens, self.options.trim
        make_model = partial(stack.make_model, positions=positions, trims=trims)
        served = self.serve(self._attempt(Level.FUSED, make_model, stack.packed))
        if served is None:
            stack.undo()
        return served

    def paged(self) -> Served | None:
        """Return the model at one of the levels of its own code over paged attention."""
        if not self.packs_steps or not self._keeps_states():
            return None
        projections = swap_projections(self.latents, self._ops, self.options.dtype)
        served = self._paged()
        if served is None:
            undo_swaps(projections)
            served = self._paged() if self.expand_latents() else None
        if served is None:
            self._forget_states()
        if served is not None and self._adapts is not None and self.options.adapters is not None:
            like = torch.empty(0, dtype=self.options.dtype, device=self.model.device)
            self._adapts.wrap(self.model, self.options.adapters, self._multiply, like)
        return served

    def _paged(self) -> Served | None:
        model, make_model = self.model, self._make_paged
        undo_merges = self.merge(lambda blocks: EagerRunner(make_model(blocks)))
        norms = swap_norms(model, self._ops, self.rebuilt) if self.options.fuse else []
        swaps = pack_linears(model, self._swapped, read_elsewhere(self.proof, self.latents))
        # What adapters add to linears must be added to each
        mlps = swap_mlps(model) if self.options.fuse and self.options.adapters is None else []
        experts = swap_experts(model, self._experts, self.options.dtype) if self.options.group_experts else []
        level = Level.PAGED_MERGED if undo_merges else Level.PAGED
        stacks = (each for parent, name in experts for each in packed_experts(parent.get_submodule(name)))
        packed = (*(each for each in packed_of(swaps) if each.form in FEW_BITS), *stacks)
        served = self.serve(self._attempt(level, make_model, packed))
        if served is None:
            put_modules_back(experts)
            put_modules_back(mlps)
            undo_swaps(swaps)
            put_modules_back(norms)
            if undo_merges:
                undo_merges()
            served = self.serve(self._attempt(Level.PAGED, make_model))
        return served

    def _make_paged(self, blocks: int) -> PagedModel:
        return PagedModel(
            self.model,
            self.probed,
            self._multiply,
            self.options.dtype,
            self._adapts,
            self.eyes,
            self.rebuilt,
            blocks,
        )

    def _keeps_states(self) -> bool:
        """Return whether kernels compute all layers that keep a state, if there are any."""
        if not self.keeping:
            return True
        kernels, said = DeviceStateKernels(self._ops), len(self.reasons)
        self.rebuild(kernels, lambda blocks: EagerRunner(self._make_paged(blocks)), "the kernels' way")
        left = len(self.keeping) - len(self.rebuilt)
        if left and said == len(self.reasons):  # they weren't tried, or those that there are hold
            self.reasons.append(f"{left} of its layers keep a state for which there are no kernels for GPUs")
        if left:
            self._forget_states()
        return not left

    def _forget_states(self) -> None:
        self.rebuilt = {}
        put_back(self.keeping)

    def _build(self) -> Stack | None:
        try:
            return build_stack(
                self.model,
                self.probed,
                self._multiply,
                self.options.dtype,
                self.proof.prompts[0],
                self.options.max_total_tokens,
            )
        except OtherShape as difference:
            self.reasons.append(f"its layers can't be fused: {difference}")
        except Exception as error:  # any model's code may fail in any way on what it wasn't written for
            if is_shortage(error):
                raise  # no other level needs less
            LOG.debug("A model can't be fused", exc_info=True)
            self.reasons.append(f"its layers can't be fused: {type(error).__name__}: {error}")
        return None

    def _swapped(self, weight: Tensor, bias: Tensor | None, codes: Codes | None = None, /) -> Packed:
        return SwappedLinear(device_linear(self._multiply, self.options.dtype, weight, bias, codes))

    def _attempt(self, level: Level, make_model: MakeModel, packed: tuple[Packed, ...] = ()) -> Attempt:
        """Return a level that is to be tried; `packed`: its linears in few bits."""

        def make_runner(blocks: int) -> Runner[Tensor]:
            model = make_model(blocks)
            if model.ops.captures:  # kernels that are compiled as they are met, and may not fit the device
                rehearse(model, filters=self.options.filter_on_device)
            return EagerRunner(model)

        return Attempt(
            level=level,
            make_runner=make_runner,
            kv_dtype=self.options.dtype,
            packed=packed,
            invariant=self._ops.invariant,
            make_model=make_model,
        )
