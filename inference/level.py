"""How much of the fast path serves a model: the best level that reproduces the model's own forward.

paged+merged   one packed step over the paged cache; parallel linears merged
paged          the same, linears as they are
sequential     one sequence after the other through transformers' cache
uncached       the same, and each token computes its whole sequence again
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from inference.fuse import Merge, merge_linears
from inference.model import vocabulary_size
from inference.paged import LayerShape, PagedCache, use_paged_attention
from inference.runner import PagedRunner, SequentialRunner
from inference.state import Chunk, Sequence
from inference.step import Runner
from inference.types import CoreRequest, LogprobsMode, Sampling

_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}  # of the largest logit
_LAYER_TYPES = {"full_attention", "sliding_attention"}  # what paged attention can express


class Level(StrEnum):
    """What a model runs at."""

    PAGED_MERGED = "paged+merged"
    PAGED = "paged"
    SEQUENTIAL = "sequential"
    UNCACHED = "uncached"


@dataclass(frozen=True, slots=True)
class Served:
    """A model at its level."""

    level: Level
    reason: str  # why not at a better one; "" at the best
    model: PreTrainedModel
    vocabulary: int  # columns of its logits: can be more than the tokenizer's tokens
    shapes: dict[nn.Module, LayerShape]  # of its attention layers; empty unless paged

    @property
    def kv_bytes(self) -> int:
        """Return what one token takes in the paged cache, all layers together; 0 if there is none."""
        return sum(shape.elements for shape in self.shapes.values()) * self.model.dtype.itemsize

    def make_runner(self, blocks: int) -> Runner[Tensor]:
        """Return what computes the model's steps, with its KV cache."""
        if self.shapes:
            return PagedRunner(self.model, PagedCache(self.shapes, blocks, self.model))
        return SequentialRunner(self.model, cached=self.level is Level.SEQUENTIAL)


def bring_up(model: PreTrainedModel, *, merge: bool, max_total_tokens: int) -> Served:
    """Switch the model to its best level; the model's own eager forward is the measure of each."""
    expected = [_own_logits(model, prompt) for prompt in _prompts(model)]
    vocabulary = expected[0].shape[1]
    reason = _why_not_paged(model.config.get_text_config(), max_total_tokens)
    shapes: dict[nn.Module, LayerShape] = {}
    if not reason:
        shapes, reason = _try_paged(model, expected)
    if shapes:
        level, reason = Level.PAGED, "merging is switched off"
        if merge:
            level, reason = _try_merged(model, shapes, expected)
        return Served(level, reason, model, vocabulary, shapes)
    model.set_attn_implementation("eager")
    runner = SequentialRunner(model, cached=True)
    if _reproduces(model, lambda: runner, expected, _sequential_steps):
        return Served(Level.SEQUENTIAL, reason, model, vocabulary, {})
    reason = f"{reason}; its cache can't be passed on either"
    return Served(Level.UNCACHED, reason, model, vocabulary, {})


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


def _try_paged(model: PreTrainedModel, expected: list[Tensor]) -> tuple[dict[nn.Module, LayerShape], str]:
    try:
        shapes = use_paged_attention(model)
    except Exception as error:  # any model's code may fail in any way on attention it wasn't written for
        return {}, f"paged attention can't be used in it ({type(error).__name__}: {error})"
    if not shapes:
        return {}, "it doesn't use transformers' attention interface"
    if _reproduces(model, lambda: _small_runner(model, shapes), expected, _paged_steps):
        return shapes, ""
    return {}, "paged attention doesn't reproduce its logits"


def _try_merged(
    model: PreTrainedModel, shapes: dict[nn.Module, LayerShape], expected: list[Tensor]
) -> tuple[Level, str]:
    runner = _small_runner(model, shapes)
    step = _paged_steps(_sequences(model))[0]
    merges: list[Merge] = merge_linears(model, lambda: runner.run(step))
    if merges and _reproduces(model, lambda: _small_runner(model, shapes), expected, _paged_steps):
        return Level.PAGED_MERGED, ""
    for merge in merges:
        merge.undo()
    return Level.PAGED, "merging changes its logits" if merges else "it has no parallel linears"


def _reproduces(
    model: PreTrainedModel,
    make_runner: Callable[[], Runner[Tensor]],
    expected: list[Tensor],
    plan: Callable[[list[Sequence]], list[list[Chunk]]],
) -> bool:
    """Return whether the runner gives the expected logits when the prompts are computed in pieces."""
    sequences = _sequences(model)
    found: dict[str, list[Tensor]] = {sequence.id: [] for sequence in sequences}
    try:
        runner = make_runner()
        for chunks in plan(sequences):
            pieces = runner.run(chunks).split([chunk.size for chunk in chunks])
            for chunk, piece in zip(chunks, pieces, strict=True):
                found[chunk.sequence.id].append(piece)
    except Exception:  # see _try_paged; a level that raises is not used
        return False
    tolerance = _TOLERANCE.get(model.dtype, 6e-2)
    return all(
        bool((torch.cat(found[sequence.id]) - logits).abs().max() <= tolerance * logits.abs().max())
        for sequence, logits in zip(sequences, expected, strict=True)
    )


def _own_logits(model: PreTrainedModel, prompt: np.ndarray[Any, np.dtype[np.int64]]) -> Tensor:
    """Return the model's own logits, (tokens, vocabulary), of one whole prompt."""
    with torch.inference_mode():
        ids = torch.from_numpy(prompt)[None].to(model.device)
        return model(input_ids=ids, use_cache=False).logits[0].float()


def _prompts(model: PreTrainedModel) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """Return two prompts of 19 and 6 random tokens, always the same ones."""
    generator = np.random.default_rng(0)
    return [generator.integers(vocabulary_size(model), size=size) for size in (19, 6)]


def _sequences(model: PreTrainedModel) -> list[Sequence]:
    """Return the prompts as sequences that want all logits, in blocks out of order."""
    sequences = [
        Sequence(
            CoreRequest(
                id=str(index),
                prompt_ids=tuple(prompt.tolist()),
                max_new_tokens=1,
                sampling=Sampling(),
                logprobs=LogprobsMode.RAW,
                top_n_tokens=0,
                prompt_logprobs=True,
            )
        )
        for index, prompt in enumerate(_prompts(model))
    ]
    for sequence, blocks in zip(sequences, ([2, 0], [1]), strict=True):
        sequence.blocks = blocks
    return sequences


def _paged_steps(sequences: list[Sequence]) -> list[list[Chunk]]:
    """Return steps with pieces of prompts, single tokens beside a piece, and single tokens together."""
    long, short = sequences
    return [
        [Chunk(long, 0, 10), Chunk(short, 0, 3)],
        [Chunk(short, 3, 4), Chunk(long, 10, 17)],
        [Chunk(long, 17, 18), Chunk(short, 4, 5)],
        [Chunk(long, 18, 19), Chunk(short, 5, 6)],
    ]


def _sequential_steps(sequences: list[Sequence]) -> list[list[Chunk]]:
    """Return steps with whole prompts first, as that is how this level is scheduled."""
    whole = [[Chunk(sequence, 0, sequence.length - 2)] for sequence in sequences]
    last = [[Chunk(s, s.length - left, s.length - left + 1) for s in sequences] for left in (2, 1)]
    return whole + last


def _small_runner(model: PreTrainedModel, shapes: dict[nn.Module, LayerShape]) -> PagedRunner:
    return PagedRunner(model, PagedCache(shapes, 3, model))
