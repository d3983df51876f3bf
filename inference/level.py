"""How much of the fast path serves a model: the best level that reproduces the model's own forward.

The model's own eager forward, computed before anything is changed, is the measure of each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from inference.errors import ModelUnavailable
from inference.fuse import merge_linears
from inference.kernels.arena import Arena
from inference.kernels.native import Library, WeightKind
from inference.layers import OtherShape
from inference.linears import NativeLinear, Packed, Swap, native_pack, pack_linears, reorder
from inference.native_cache import NativeCache
from inference.paged import PagedCache, Probed, use_paged_attention
from inference.proof import (
    PROOF_BLOCKS,
    Proof,
    Verdict,
    alone_steps,
    odd_steps,
    packed_steps,
    sequential_steps,
)
from inference.runner import PagedRunner, SequentialRunner
from inference.served import Level, MakeRunner, Served
from inference.stack import Packs, fuse_model
from inference.step import Runner
from inference.weights import narrow_embeddings

LOG = logging.getLogger(__name__)

_LAYER_TYPES = {"full_attention", "sliding_attention"}  # what paged attention can express
_HEAVY = 1_000_000  # numbers of a parameter that torch computes with: from here on its threads pay


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What may be used."""

    library: Library | None  # the C extension
    without: str = ""  # why it isn't there
    fuse: bool = True
    merge: bool = True
    narrow: bool = True
    compress: bool = True  # 16-bit weights, where that loses nothing
    quantize: bool = False  # to int8
    round_inputs: bool = False  # of linears, to bfloat16
    dtype: torch.dtype = torch.float32  # what is computed in
    kv_dtype: torch.dtype = torch.float32  # of the native kernels' KV cache; others' is `dtype`
    kv_dtype_asked: bool = False  # a level with another one won't do
    max_total_tokens: int = 2048


def bring_up(model: PreTrainedModel, options: Options) -> Served:
    """Switch the model to its best level; raise ModelUnavailable if that can't do what was asked for."""
    climb = _Climb(model, options)
    served = climb.fused() or climb.native() or climb.paged() or climb.sequential()
    if options.quantize and not (served.level.native and served.packed):
        raise ModelUnavailable(
            f"--quantize int8 needs the native kernels, and they can't serve this model: {served.reason}; "
            f"start without --quantize"
        )
    if options.kv_dtype_asked and served.kv_dtype != options.kv_dtype:
        raise ModelUnavailable(
            f"--kv-cache-dtype {_name(options.kv_dtype)} needs the native kernels, and they can't serve this "
            f"model: {served.reason}; its cache is {_name(served.kv_dtype)}: start without --kv-cache-dtype"
        )
    return served


class _Climb:
    """The way down from the best level; each attempt leaves the model as it was if it fails."""

    def __init__(self, model: PreTrainedModel, options: Options) -> None:
        self._model = model
        self._options = options
        self._proof = Proof(model, options.dtype)
        self._reasons: list[str] = []  # of the levels that were left out
        self._probed: dict[nn.Module, Probed] = {}
        reason = _why_not_paged(model.config.get_text_config(), options.max_total_tokens)
        if not reason:
            self._probed, reason = _probe(model)
        if reason:
            self._reasons.append(reason)
        if options.narrow:
            narrow_embeddings(model)

    def fused(self) -> Served | None:
        """Return the model at the level `fused`."""
        library = self._options.library
        if not self._probed or library is None:
            return None
        if not self._options.fuse:
            self._reasons.append("fusing layers is switched off")
            return None
        try:
            fused = fuse_model(
                self._model,
                self._probed,
                library,
                self._packs(library),
                self._proof.prompts[0],
                self._options.max_total_tokens,
            )
        except OtherShape as difference:
            self._reasons.append(f"its layers can't be fused: {difference}")
            return None
        except Exception as error:  # any model's code may fail in any way on what it wasn't written for
            LOG.debug("A model can't be fused", exc_info=True)
            self._reasons.append(f"its layers can't be fused: {type(error).__name__}: {error}")
            return None

        def make_runner(blocks: int) -> Runner[Tensor]:
            return fused.make_runner(blocks, self._options.kv_dtype)

        served = self._serve(Level.FUSED, make_runner, tuple(fused.packed))
        if served is None:
            fused.undo()
        return served

    def native(self) -> Served | None:
        """Return the model at the level `native`."""
        library = self._options.library
        if not self._probed:
            return None
        if library is None:
            self._reasons.append(self._options.without)
            return None

        def make_exact(blocks: int) -> Runner[Tensor]:
            return PagedRunner(self._model, NativeCache(library, self._probed, blocks, torch.float32))

        def make_runner(blocks: int) -> Runner[Tensor]:
            return PagedRunner(
                self._model, NativeCache(library, self._probed, blocks, self._options.kv_dtype)
            )

        rounded = self._rounds_linears or self._rounds_cache
        if rounded and not self._proof.check(lambda: make_exact(PROOF_BLOCKS), packed_steps).holds:
            self._reasons.append("native attention doesn't reproduce its logits")
            return None
        undo_merges = self._merge(make_exact) if self._options.merge else None
        swaps = pack_linears(self._model, self._packs(library).final)
        served = self._serve(Level.NATIVE, make_runner, _packed(swaps))
        if served is None:
            _undo(swaps)
            if undo_merges:
                undo_merges()
        return served

    def paged(self) -> Served | None:
        """Return the model at one of the levels of torch's paged attention."""
        if not self._probed:
            return None
        model, dtype = self._model, self._options.dtype

        def make_runner(blocks: int) -> Runner[Tensor]:
            return PagedRunner(model, PagedCache(self._probed, blocks, dtype, model.device))

        undo_merges = None
        if not self._options.merge:
            self._reasons.append("merging is switched off")
        elif (undo_merges := self._merge(make_runner)) is None:
            self._reasons.append("it has no parallel linears")
        swaps = pack_linears(model, reorder) if _reorders(model) else []
        level = Level.PAGED_MERGED if undo_merges else Level.PAGED
        served = self._serve(level, make_runner, _packed(swaps))
        if served is None:
            _undo(swaps)
            if undo_merges:
                undo_merges()
            if swaps or undo_merges:
                served = self._serve(Level.PAGED, make_runner, ())
        return served

    def sequential(self) -> Served:
        """Return the model at a level of one sequence at a time."""
        self._model.set_attn_implementation("eager")
        for level in (Level.SEQUENTIAL, Level.UNCACHED):
            served = self._sequential(level)
            if served.verdict.holds:
                break
            if level is Level.SEQUENTIAL:
                self._reasons.append("its cache can't be passed on either")
        return served

    def _sequential(self, level: Level) -> Served:
        def make_runner(_: int) -> Runner[Tensor]:
            return SequentialRunner(self._model, cached=level is Level.SEQUENTIAL)

        verdict = self._proof.check(lambda: make_runner(0), sequential_steps)
        return self._served(level, make_runner, (), verdict, paged=False)

    @property
    def _rounds_linears(self) -> bool:
        return self._options.quantize or self._options.round_inputs

    @property
    def _rounds_cache(self) -> bool:
        return self._options.kv_dtype != torch.float32

    def _packs(self, library: Library) -> Packs:
        options = self._options
        if not self._rounds_linears:
            final = native_pack(
                library, None, narrow=options.narrow, round_inputs=False, compress=options.compress
            )
            return Packs(final=final, exact=None)
        # What a layer is only tried with must not lie beside what stays, or its memory would never go back
        exact = native_pack(library, None, narrow=options.narrow, round_inputs=False, arena=Arena())
        kind = WeightKind.INT8 if options.quantize else WeightKind.BFLOAT16
        final = native_pack(
            library, kind, narrow=True, round_inputs=options.round_inputs, compress=options.compress
        )
        return Packs(final, exact)

    def _merge(self, make_runner: MakeRunner) -> Callable[[], None] | None:
        """Merge parallel linears and return what undoes it; None if there are none."""
        runner = make_runner(PROOF_BLOCKS)
        try:
            merges = merge_linears(self._model, lambda: self._proof.run(runner))
        except Exception:  # as in Proof.check; the level's own check says what it was
            return None

        def undo() -> None:
            for merge in merges:
                merge.undo()

        return undo if merges else None

    def _serve(self, level: Level, make_runner: MakeRunner, packed: tuple[Packed, ...]) -> Served | None:
        """Return the model at a level if it reproduces its logits there, else note why not."""
        rounded = level.native and (self._rounds_linears or self._rounds_cache)
        verdict = self._proof.check(lambda: make_runner(PROOF_BLOCKS), packed_steps, rounded=rounded)
        if verdict.holds:
            return self._served(level, make_runner, packed, verdict)
        why = verdict.complaint or f"it doesn't reproduce its logits: {verdict.error:.1e} off"
        self._reasons.append(f"level {level} can't be used in it ({why})")
        return None

    def _served(
        self,
        level: Level,
        make_runner: MakeRunner,
        packed: tuple[Packed, ...],
        verdict: Verdict,
        *,
        paged: bool = True,
    ) -> Served:
        others = [
            self._proof.check(lambda: make_runner(PROOF_BLOCKS), steps, rounded=True)
            for steps in ((alone_steps, odd_steps) if level.native else ())
        ]
        kv_dtype = self._options.kv_dtype if level.native else self._options.dtype
        elements = sum(each.shape.elements for each in self._probed.values()) if paged else 0
        heavy = level is not Level.FUSED and _is_heavy(self._model)
        return Served(
            level=level,
            reason="; ".join(self._reasons),
            verdict=replace(verdict, logits=None),  # they are big
            exact=bool(others) and not heavy and all(_same_bits(each, verdict) for each in others),
            vocabulary=self._proof.columns,
            kv_bytes=elements * kv_dtype.itemsize,
            kv_dtype=kv_dtype,
            make_runner=make_runner,
            packed=packed,
            torch_heavy=heavy,
        )


def _why_not_paged(text: PreTrainedConfig, max_total_tokens: int) -> str:
    """Return what of the model paged attention can't do, "" if nothing is known."""
    others = set(getattr(text, "layer_types", None) or ()) - _LAYER_TYPES
    if others:
        return f"its layers of type {', '.join(sorted(others))} have no paged form"
    if getattr(text, "attention_chunk_size", None):
        return "its chunked attention has no paged form"
    short = getattr(text, "original_max_position_embeddings", None) or max_total_tokens
    if "longrope" in str(getattr(text, "rope_parameters", None)) and max_total_tokens > short:
        # Its rotation changes for all tokens of a step as soon as one of them is past that position.
        return f"its rotary embedding changes at {short} tokens: --max-total-tokens {short} avoids that"
    return ""


def _probe(model: PreTrainedModel) -> tuple[dict[nn.Module, Probed], str]:
    try:
        probed = use_paged_attention(model)
    except Exception as error:  # any model's code may fail in any way on attention it wasn't written for
        return {}, f"paged attention can't be used in it ({type(error).__name__}: {error})"
    return probed, "" if probed else "it doesn't use transformers' attention interface"


def _same_bits(one: Verdict, other: Verdict) -> bool:
    if one.logits is None or other.logits is None:
        return False
    return torch.equal(one.logits, other.logits)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _packed(swaps: list[Swap]) -> tuple[Packed, ...]:
    return tuple({id(swap.packed): swap.packed for swap in swaps}.values())


def _undo(swaps: list[Swap]) -> None:
    for swap in reversed(swaps):
        swap.undo()


def _reorders(model: PreTrainedModel) -> bool:
    return model.device.type == "cpu" and torch.backends.mkldnn.is_available()


def _is_heavy(model: PreTrainedModel) -> bool:
    """Return whether torch itself multiplies with big parameters."""
    tables = {id(model.get_input_embeddings().weight)}
    return any(
        parameter.dim() > 1 and parameter.numel() > _HEAVY and id(parameter) not in tables
        for module in model.modules()
        if not isinstance(module, NativeLinear)
        for parameter in module.parameters(recurse=False)
    )
