"""The level of models with an encoder and a decoder."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from inference.encoded.proof import EncodedProof
from inference.encoded.texts import EncodedRunner, Start, decoder_start
from inference.errors import ModelUnavailable
from inference.levels.exactness import is_heavy
from inference.levels.in_float32 import in_float32
from inference.levels.options import Options
from inference.levels.packing import packs_of
from inference.levels.proof import Verdict
from inference.levels.served import Level, Served
from inference.models.linears import Packed, pack_linears, packed_of, undo_swaps
from inference.shortage import is_shortage
from inference.telling import told


@dataclass(frozen=True, slots=True)
class Way:
    """How texts are computed."""

    name: str
    level: Level
    together: bool = False  # those that go on are a batch

    def runner(self, model: PreTrainedModel, start: Start) -> EncodedRunner:
        """Return what computes them."""
        cached = self.level is Level.SEQUENTIAL
        return EncodedRunner(model, start, cached=cached, together=self.together)


_WAYS = (
    Way("batches of texts", Level.SEQUENTIAL, together=True),
    Way("a cache", Level.SEQUENTIAL),
    Way("a text from its beginning", Level.UNCACHED),
)


def bring_up_encoded(model: PreTrainedModel, options: Options) -> Served:
    """Have a model with an encoder serve texts in the best way, its linears the C extension's if they hold.

    Raises ModelUnavailable if that can't do what was asked for.
    """
    _refuse(options)
    start = decoder_start(model)
    proof = _proof(model, options, start)
    way, verdict, reasons = _best(model, options, start, proof)
    packed: tuple[Packed, ...] = ()
    if options.library is None:
        reasons.append(options.without)
    else:
        swaps = pack_linears(model, packs_of(options, options.library).final, proof.bypassed)
        found = proof.check_text(way.runner(model, start), rounded=options.rounds_linears)
        if found.holds:
            packed, verdict = packed_of(swaps), found
        else:
            undo_swaps(swaps)
            reasons.append(f"native linears don't reproduce its logits ({_said(found)})")
    if options.quantize and not packed:
        raise ModelUnavailable(f"--quantize int8 can't be done: {reasons[-1]}; start without --quantize")
    return Served(
        level=way.level,
        reason="; ".join(reasons),
        verdict=replace(verdict, logits=None),  # they are big
        exact=False,
        vocabulary=proof.columns,
        kv_bytes=0,
        kv_dtype=options.dtype,
        make_runner=lambda _: way.runner(model, start),
        packed=packed,
        torch_heavy=is_heavy(model, set(proof.idle)),
        decoder_start=start,
        together=way.together,
    )


def _refuse(options: Options) -> None:
    """Raise ModelUnavailable for what such a model can't be served with."""
    asked = {
        "--lora-adapters": options.adapters is not None,
        "--num-shard": options.group is not None,
        "--kv-cache-dtype": options.kv_dtype_asked and options.kv_dtype != options.dtype,
    }
    for flag in (each for each, given in asked.items() if given):
        raise ModelUnavailable(
            f"{flag} can't be done with this model: it has an encoder and a decoder; start without {flag}"
        )


def _proof(model: PreTrainedModel, options: Options, start: Start) -> EncodedProof:
    """Return the model's own logits; raise ModelUnavailable if there are none of text alone."""
    try:
        proof = EncodedProof(model, options.dtype, options.max_total_tokens, start)
    except Exception as error:  # any model's code may fail in any way on what it wasn't written for
        if is_shortage(error):
            raise  # told elsewhere, with what is free
        raise ModelUnavailable(
            f"The model can't be served: its own code takes no text alone ({told(error)})"
        ) from error
    proof.require_numbers()
    return proof


def _best(
    model: PreTrainedModel, options: Options, start: Start, proof: EncodedProof
) -> tuple[Way, Verdict, list[str]]:
    """Return the best way that reproduces the model's logits, and why it isn't a better one."""
    reasons = ["it has an encoder and a decoder"]
    for way in _WAYS:
        if way.together and not options.fuse:
            reasons.append(f"{way.name} are switched off, as layers aren't fused")
            continue
        verdict = proof.check_text(way.runner(model, start))
        if verdict.holds and way.together and options.dtype != torch.float32:
            verdict = _in_float32(model, options, start, way) or verdict
        if verdict.holds:
            return way, verdict, reasons
        reasons.append(f"{way.name} can't be done ({_said(verdict)})")
    raise ModelUnavailable(f"The model can't be served: {'; '.join(reasons)}")


def _in_float32(model: PreTrainedModel, options: Options, start: Start, way: Way) -> Verdict | None:
    """Return what is wrong with a way to compute a model of 16 bits, None if nothing is.

    These round as much as a wrong place changes. Raises what says that there is no memory for it.
    """
    try:
        with in_float32(model):
            proof = EncodedProof(model, torch.float32, options.max_total_tokens, start)
            verdict = proof.check_text(way.runner(model, start))
    except Exception as error:  # any model's code may fail in any way on what it wasn't written for
        if is_shortage(error):
            raise  # told elsewhere; one text at a time would be for good, for a moment's want
        return Verdict(False, math.inf, f"in float32 its code fails, {told(error)}")
    return None if verdict.holds else replace(verdict, complaint=f"in float32 {_said(verdict)}")


def _said(verdict: Verdict) -> str:
    return verdict.complaint or f"{verdict.error:.1e} off"
