"""The level of models with an encoder and a decoder."""

from __future__ import annotations

from dataclasses import replace

from transformers import PreTrainedModel

from inference.encoded import EncodedRunner, Start, decoder_start
from inference.encoded_proof import EncodedProof
from inference.errors import ModelUnavailable
from inference.ladder import is_heavy
from inference.linears import Packed, pack_linears, packed_of, undo_swaps
from inference.options import Options
from inference.packing import packs_of
from inference.proof import Verdict
from inference.served import Level, Served
from inference.shortage import is_shortage


def bring_up_encoded(model: PreTrainedModel, options: Options) -> Served:
    """Have a model with an encoder serve one text at a time, its linears the C extension's if they hold.

    Raises ModelUnavailable if that can't do what was asked for.
    """
    _refuse(options)
    start = decoder_start(model)
    proof = _proof(model, options, start)
    reasons = ["it has an encoder and a decoder"]
    level, verdict = _level(model, start, proof, reasons)
    packed: tuple[Packed, ...] = ()
    if options.library is None:
        reasons.append(options.without)
    else:
        swaps = pack_linears(model, packs_of(options, options.library).final, proof.bypassed)
        found = proof.check_text(_runner(model, start, level), rounded=options.rounds_linears)
        if found.holds:
            packed, verdict = packed_of(swaps), found
        else:
            undo_swaps(swaps)
            reasons.append(f"native linears don't reproduce its logits: {found.complaint or found.error}")
    if options.quantize and not packed:
        raise ModelUnavailable(f"--quantize int8 can't be done: {reasons[-1]}; start without --quantize")
    return Served(
        level=level,
        reason="; ".join(reasons),
        verdict=replace(verdict, logits=None),  # they are big
        exact=False,
        vocabulary=proof.columns,
        kv_bytes=0,
        kv_dtype=options.dtype,
        make_runner=lambda _: _runner(model, start, level),
        packed=packed,
        torch_heavy=is_heavy(model, set(proof.idle)),
        decoder_start=start,
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
            f"The model can't be served: its own code takes no text alone ({type(error).__name__}: {error})"
        ) from error
    proof.require_numbers()
    return proof


def _level(
    model: PreTrainedModel, start: Start, proof: EncodedProof, reasons: list[str]
) -> tuple[Level, Verdict]:
    """Return the level that reproduces the model's logits; note why it isn't the better one."""
    for level in (Level.SEQUENTIAL, Level.UNCACHED):
        verdict = proof.check_text(_runner(model, start, level))
        if verdict.holds:
            return level, verdict
        reasons.append(f"level {level} can't be used in it ({verdict.complaint or verdict.error})")
    raise ModelUnavailable(f"The model can't be served: {'; '.join(reasons)}")


def _runner(model: PreTrainedModel, start: Start, level: Level) -> EncodedRunner:
    return EncodedRunner(model, start, cached=level is Level.SEQUENTIAL)
