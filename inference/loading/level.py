"""How much of the fast path serves a model: the best level that reproduces the model's own forward."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NoReturn

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.cpu.batched import BatchedRunner
from inference.cpu.experts import pack_mixtures, undo_mixtures
from inference.cpu.latents import pack_latents
from inference.cpu.native_cache import NativeCache
from inference.cpu.runner import PagedRunner
from inference.cpu.stack import FusedModel, fuse_model
from inference.encoded.climb import bring_up_encoded
from inference.encoded.texts import has_encoder
from inference.errors import ModelUnavailable
from inference.gpu.levels import DeviceClimb
from inference.kernels.native import Library
from inference.kernels.native_recurrence import NativeStates
from inference.levels.adapted import check_adapters
from inference.levels.asked import require_what_was_asked
from inference.levels.ladder import Attempt, Climb
from inference.levels.latents import read_elsewhere
from inference.levels.later import LaterAdapters
from inference.levels.options import Options
from inference.levels.packing import exact_pack, packs_of
from inference.levels.proof import PROOF_BLOCKS, Proof
from inference.levels.served import Level, MakeRunner, Served
from inference.models.latent import Latent
from inference.models.layers import OtherShape
from inference.models.linears import (
    Packed,
    drop_weight,
    pack_linears,
    packed_of,
    reorder,
    undo_swaps,
)
from inference.models.lora import Adaptable
from inference.models.paged import PagedCache
from inference.models.trace import eager_attention
from inference.models.weights import narrow_embeddings, widen_experts
from inference.recurrent.elsewhere import restore_decays
from inference.recurrent.modules import rebuild
from inference.sequences.computing import Runner
from inference.shards.group import Group
from inference.shards.runner import SharedRunner
from inference.shortage import is_shortage
from inference.telling import told

__all__ = ["Options", "bring_up"]

LOG = logging.getLogger(__name__)


def bring_up(model: PreTrainedModel, options: Options) -> Served:
    """Switch the model to its best level; raise ModelUnavailable if that can't do what was asked for."""
    climb: DeviceClimb | _NativeClimb
    if options.adaptable is not None and (has_encoder(model) or options.ops is not None):
        raise _refuse_later("models with an encoder, and GPUs, take none")
    if has_encoder(model):
        return bring_up_encoded(model, options)
    restore_decays(model)
    if options.ops is not None:
        climb = device = DeviceClimb(model, options, options.ops)
        served = device.first(device.fused, device.paged) or device.sequential()
    elif options.group is not None:
        climb = host = _NativeClimb(model, options)
        served = host.first(host.fused) or host.refuse_shards(options.group)
    else:
        climb = host = _NativeClimb(model, options)
        ways = (host.fused, host.native, host.paged, host.batched)
        served = host.first(*ways) or host.sequential()
    check_adapters(served, options, climb.proof)
    climb.check_vision(served, rounded=climb.rounds and options.ops is None)
    if options.adaptable is not None:
        served = replace(served, later=host.later(served, options.adaptable))
    if options.adapters is not None and (options.ops is not None or served.level is not Level.FUSED):
        options.adapters.release()
    require_what_was_asked(served, options)
    return served


class _NativeClimb(Climb):
    """The ladder on a CPU."""

    def __init__(self, model: PreTrainedModel, options: Options) -> None:
        super().__init__(model, options)
        self._fused: FusedModel | None = None  # at that level
        self._idle = _paths(model, self.proof.idle)
        self._damaged = False  # its weights were rounded to 8 bits, and put back so
        if options.narrow:
            narrow_embeddings(model)
        if options.library is None:  # none of them will be packed, and 32 bits are what was planned
            widen_experts(model)

    def fused(self) -> Served | None:
        """Return the model at the level `fused`."""
        library = self.options.library
        if not self.packs_steps or library is None:
            return None
        if not self.options.fuse:
            self.reasons.append("fusing layers is switched off")
            return None
        self.rebuilt = rebuild(self.keeping, NativeStates(library))
        if own := len(self.keeping) - len(self.rebuilt):
            self.reasons.append(f"its layers can't be fused: {own} of them keep a state by code of their own")
        served = None if own else self._fuse(library)
        if served is None:
            self.rebuilt = {}
        return served

    def _fuse(self, library: Library) -> Served | None:
        try:
            fused = fuse_model(
                self.model,
                self.probed,
                library,
                packs_of(self.options, library),
                self.proof.prompts[0],
                max(self.options.max_total_tokens, len(self.proof.prompts[0])),
                () if self.options.adapters is None else self.options.adapters.paths,
                self.rebuilt,
            )
        except OtherShape as difference:
            self.reasons.append(f"its layers can't be fused: {difference}")
            return None
        except Exception as error:  # any model's code may fail in any way on what it wasn't written for
            if is_shortage(error):
                raise  # the lower level would be for good, for a moment's want
            LOG.debug("A model can't be fused", exc_info=True)
            self._damaged = self.options.quantize
            self.reasons.append(f"its layers can't be fused: {told(error)}")
            return None

        group = self.options.group

        def make_runner(blocks: int) -> Runner[Tensor]:
            runner = fused.make_runner(
                blocks, self.options.kv_dtype, self.options.adapters, trims=self.options.trim
            )
            return runner if group is None else SharedRunner(runner, group, self.proof.columns, library)

        served = self.serve(
            Attempt(
                level=Level.FUSED,
                make_runner=make_runner,
                kv_dtype=self.options.kv_dtype,
                packed=tuple(fused.packed),
                rounded=self.rounds,
                invariant=True,
            )
        )
        if served is None:
            fused.undo()
            self._damaged = self.options.quantize
            return None
        self._fused = fused
        if self.options.screen and group is None:
            self._screen(fused)
        return served

    def later(self, served: Served, linears: Adaptable) -> LaterAdapters:
        """Return what takes adapters up while the model runs; raise ModelUnavailable if nothing does."""
        if self._fused is None or self.options.group is not None:
            why = "shards take none" if self.options.group is not None else served.name
            raise _refuse_later(f"they need the level fused ({why})")
        runner = served.make_runner(PROOF_BLOCKS)
        return LaterAdapters(linears, self._idle, self._fused.fixed, self._fused, runner, self.proof.prompts)

    def refuse_shards(self, group: Group) -> NoReturn:
        """Raise ModelUnavailable with why a model can't be computed by several processes."""
        if group.lost is not None:
            raise ModelUnavailable(f"The model can't be loaded: {group.lost}")
        why = self.options.without if self.options.library is None else "; ".join(self.reasons)
        raise ModelUnavailable(
            f"The model can't be spread over {group.share.count} shards, which needs the level fused: {why}; "
            f"start without --num-shard"
        )

    def _screen(self, fused: FusedModel) -> None:
        """Have a model's head screened, or serve it without."""
        try:
            fused.screen_head()
        except Exception:  # for want of memory, above all
            LOG.warning("The head isn't screened, and steps take longer", exc_info=True)

    def native(self) -> Served | None:
        """Return the model at the level `native`."""
        library = self.options.library
        if not self.packs_steps:
            return None
        if library is None:
            self.reasons.append(self.options.without)
            return None

        def make_exact(blocks: int) -> Runner[Tensor]:
            cache = NativeCache(library, self.probed, blocks, torch.float32)
            return PagedRunner(self.model, cache, states=self.states())

        def make_runner(blocks: int) -> Runner[Tensor]:
            cache = NativeCache(library, self.probed, blocks, self.options.kv_dtype)
            return PagedRunner(self.model, cache, self.adapting, self.eyes, self.states(self.adapting))

        if self.keeping:
            self.rebuild(NativeStates(library), make_exact, "the extension")
        if self.rounds and not self.holds(make_exact):
            self.reasons.append("native attention doesn't reproduce its logits")
            self.rebuilt = {}
            return self.native() if self.expand_latents() else None
        packed, undo = self._pack(library, make_exact, self.latents)
        served = self.serve(
            Attempt(
                level=Level.NATIVE,
                make_runner=make_runner,
                kv_dtype=self.options.kv_dtype,
                packed=packed,
                rounded=self.rounds,
                invariant=True,
            )
        )
        if served is None:
            undo()
            self.rebuilt = {}
            return self.native() if self.expand_latents() else None
        else:
            for linear in (each for module in self.rebuilt.values() for each in module.replaced):
                drop_weight(linear)
            self._adapt(library)
        return served

    def _pack(
        self, library: Library, make_exact: MakeRunner, latents: Sequence[Latent] = ()
    ) -> tuple[tuple[Packed, ...], Callable[[], None]]:
        """Have the model's linears computed by the extension; return them and what puts its own back."""
        exact = exact_pack(self.options, library)
        undo_merges = self.quiet_merge(make_exact) if self.options.merge else None
        packs = packs_of(self.options, library)
        mixtures = pack_mixtures(self.model, library, packs.final, exact)
        products = exact if self.options.quantize else packs.final
        swaps = pack_latents(latents, products)
        swaps += pack_linears(self.model, packs.final, self.proof.bypassed)

        def undo() -> None:
            undo_swaps(swaps)
            undo_mixtures(mixtures)
            if undo_merges:
                undo_merges()
            self._damaged = self.options.quantize

        return (*packed_of(swaps), *(each for swap in mixtures for each in swap.packed)), undo

    def _adapt(self, library: Library) -> None:
        # As rows that are computed alone have other last bits in torch
        exact = exact_pack(self.options, library)
        self.adapt(lambda weight: exact(weight, None))

    def measure(self) -> Proof:
        """Return what says whether the model as it is now is computed exactly.

        To round weights in the same way once more changes nothing: they can still be served.
        """
        if not self._damaged:
            return self.proof
        with eager_attention(self.model):
            proof = Proof(self.model, self.options.dtype, self.options.max_total_tokens)
        proof.tolerance = self.proof.tolerance
        return proof

    def paged(self) -> Served | None:
        """Return the model at one of the levels of torch's paged attention."""
        if not self.packs_steps:
            return None
        model, dtype = self.model, self.options.dtype

        def make_runner(blocks: int) -> Runner[Tensor]:
            cache = PagedCache(self.probed, blocks, dtype, model.device)
            return PagedRunner(model, cache, self.adapting, self.eyes, self.states(self.adapting))

        undo_merges = self.merge(make_runner)
        swaps = (
            pack_linears(model, reorder, read_elsewhere(self.proof, self.latents)) if _reorders(model) else []
        )
        level = Level.PAGED_MERGED if undo_merges else Level.PAGED
        attempt = Attempt(level=level, make_runner=make_runner, kv_dtype=dtype, packed=packed_of(swaps))
        served = self.serve(attempt)
        if served is None:
            undo_swaps(swaps)
            if undo_merges:
                undo_merges()
            if swaps or undo_merges:
                served = self.serve(Attempt(level=Level.PAGED, make_runner=make_runner, kv_dtype=dtype))
        if served is not None:
            self.adapt()
        return served

    def batched(self) -> Served | None:
        """Return the model at the level of batches through its own attention."""
        library, parts = self.options.library, self.cached_parts()
        if not parts:
            return None
        if library is None:
            served = self.serve_batched(parts)
            if served is not None:
                self.adapt()
            return served

        def make_exact(blocks: int) -> Runner[Tensor]:
            return BatchedRunner(self.model, parts, blocks, self.options.dtype)

        if self.options.rounds_linears and not self.holds(make_exact):
            self.reasons.append("batches through its own attention don't reproduce its logits")
            return None
        packed, undo = self._pack(library, make_exact)
        served = self.serve_batched(parts, packed, rounded=self.options.rounds_linears)
        if served is None:
            undo()
        else:
            self._adapt(library)
        return served

    @property
    def rounds(self) -> bool:
        """Return whether weights, or keys and values, are rounded, so that nearly right will do."""
        return self.options.rounds_linears or self.options.kv_dtype != torch.float32


def _refuse_later(why: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"Adapters can't be loaded while the server runs: {why}; start without --lora-directory, and name "
        "them by --lora-adapters"
    )


def _paths(model: PreTrainedModel, modules: Collection[nn.Module]) -> frozenset[str]:
    named = model.named_modules(remove_duplicate=False)
    return frozenset(path for path, module in named if module in modules)


def _reorders(model: PreTrainedModel) -> bool:
    return model.device.type == "cpu" and torch.backends.mkldnn.is_available()
