"""Models with an encoder, which reads a prompt, and a decoder, which writes its text.

A sequence's tokens are its prompt and what was generated, as everywhere. What the decoder begins with is no
part of them: the logits behind a prompt are what it makes of that.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from inference.cpu.runner import Kept, OneByOne
from inference.encoded.batch import Batch, Rows, is_whole, joinable
from inference.encoded.places import PlacedDecoder
from inference.errors import ModelUnavailable
from inference.sequences.state import Chunk, Pieces, Sequence

Start = tuple[int, ...]  # tokens

_PIECE = 64  # tokens of a text that is computed again: logits of all of them would take gigabytes
_SHORT = 64  # tokens: all that have fewer may be padded; those that have more at most to twice as many


def has_encoder(model: PreTrainedModel) -> bool:
    """Return whether a model's texts are its decoder's, and another part reads prompts."""
    takes = inspect.signature(model.forward).parameters
    return bool(model.config.is_encoder_decoder) and "decoder_input_ids" in takes


def decoder_start(model: PreTrainedModel) -> Start:
    """Return what a model's decoder begins with; raise ModelUnavailable if its files don't say it.

    That is its start token, and the one that is forced to be the first of a text if there is one (BART).
    """
    said = (model.generation_config, model.config)
    names = ("decoder_start_token_id", "bos_token_id")
    begins = [getattr(each, name, None) for name in names for each in said]
    start = next((each for each in begins if isinstance(each, int)), None)
    if start is None:
        raise ModelUnavailable(
            "The model has an encoder and a decoder, and its files don't say what the decoder begins with: "
            "add `decoder_start_token_id` to its generation_config.json"
        )
    firsts = [getattr(each, "forced_bos_token_id", None) for each in said]
    forced = [each for each in firsts if isinstance(each, int)]
    return (start, *forced[:1])


class EncodedRunner(OneByOne):
    """Runs each prompt alone through the encoder, and its text through transformers' cache.

    With `together` texts that go on are one batch. With `cached` false what the decoder computed isn't kept,
    and each token computes its whole text again.
    """

    def __init__(
        self, model: PreTrainedModel, start: Start, *, cached: bool = True, together: bool = False
    ) -> None:
        self._model = model
        self._start = start
        self._cached = cached
        self._together = together
        self._placed: PlacedDecoder | None = None  # made by the first batch
        self._encoder = model.get_encoder()

    @torch.inference_mode()
    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> Tensor:
        """Do as any runner of pieces alone, after texts that can go on together did."""
        if self._together:
            self._run_together([chunk for chunk in pieces.chunks if _goes_on(chunk)])
        return super().run(pieces)

    def _run_together(self, chunks: list[Chunk]) -> None:
        """Compute the next token's logits of texts that go on, in batches of those of like length."""
        groups: dict[tuple[int, int], list[Chunk]] = {}
        for chunk in chunks:
            prompt = chunk.sequence.prompt_length
            groups.setdefault((_bucket(prompt), _bucket(chunk.stop - prompt)), []).append(chunk)
        for group in groups.values():
            if len(group) > 1:  # who is alone has its own cache
                self._run_group(group)

    def _run_group(self, chunks: list[Chunk]) -> None:
        self._placed = self._placed or PlacedDecoder(self._model)
        chunks = _beside_each_other(chunks)
        batch = _batch_of([_kept(chunk.sequence) for chunk in chunks])
        for row, chunk in enumerate(chunks):  # who goes on holds the batch, and nobody one before
            chunk.sequence.cache = replace(_kept(chunk.sequence), values=_Row(batch, row))
        newest = np.array([chunk.sequence.ids[chunk.start] for chunk in chunks])
        try:
            logits = batch.step(self._placed, torch.from_numpy(newest)[:, None].to(self._model.device))
        except BaseException:  # some layers have the token, others don't: all is computed again
            for chunk in chunks:
                chunk.sequence.cache = None
            raise
        for row, chunk in enumerate(chunks):
            known = _kept(chunk.sequence)
            chunk.sequence.cache = replace(known, stop=chunk.stop, logits=logits[row : row + 1])

    def _run(self, chunk: Chunk) -> Tensor:
        sequence, end = chunk.sequence, chunk.sequence.prompt_length
        kept = sequence.cache if isinstance(sequence.cache, _Kept) else None
        source = self._encode(sequence.ids[:end]) if kept is None else kept.source
        goes_on = kept is not None and self._cached
        if goes_on:
            given = sequence.ids[chunk.start : chunk.stop]
        else:
            given = np.concatenate([np.array(self._start, dtype=np.int64), sequence.ids[end : chunk.stop]])
        logits, values = self._decode(given, source, kept.cache if kept is not None and goes_on else None)
        logits = logits[len(logits) - chunk.logit_rows :].float().clone()  # a view would keep all of them
        sequence.cache = _Kept(values, chunk.stop, logits, source)
        return logits

    def _decode(self, ids: NDArray[np.int64], source: Any, values: Any) -> tuple[Tensor, Any]:
        """Return the logits (rows, vocabulary) of a text's last tokens, and what is kept of it."""
        logits = torch.empty(0)
        pieces = range(0, len(ids), _PIECE) if self._cached else (0,)
        for start in pieces:
            output = self._model(
                encoder_outputs=source,
                decoder_input_ids=self._ids(ids[start : start + _PIECE] if self._cached else ids),
                use_cache=self._cached,
                **({"past_key_values": values} if values is not None else {}),
            )
            logits, values = output.logits[0], output.past_key_values if self._cached else None
        return logits, values

    def _encode(self, prompt: NDArray[np.int64]) -> Any:
        return self._encoder(input_ids=self._ids(prompt))

    def _ids(self, ids: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(ids)[None].to(self._model.device)


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """Where in a batch a text is."""

    batch: Batch
    row: int


@dataclass(frozen=True, slots=True, eq=False)
class _Kept(Kept):
    """Its `values` are transformers' cache of the text, or a row; None where nothing is kept."""

    source: Any  # what the encoder made of the prompt, as transformers passes it on

    @property
    def batch(self) -> Batch | None:
        """Return the batch that it is a row of; None if it is alone."""
        return self.values.batch if isinstance(self.values, _Row) else None

    @property
    def rows(self) -> Rows:
        """Return it as a batch takes it, if it is alone."""
        if not joinable(self.source, self.values):
            raise TypeError("what is kept of texts isn't keys and values of all tokens, or not these alone")
        return Rows.of(self.source, self.values)

    @property
    def cache(self) -> Any:
        """Return it as transformers takes it."""
        place = self.values
        return place.batch.some([place.row]).alone if isinstance(place, _Row) else place


def _beside_each_other(chunks: list[Chunk]) -> list[Chunk]:
    """Return texts of one batch beside each other, in its order: they are taken over as one."""
    firsts: dict[Batch | None, int] = {}
    places: list[tuple[int, int, Chunk]] = []
    for at, chunk in enumerate(chunks):
        values = _kept(chunk.sequence).values
        if isinstance(values, _Row):
            places.append((firsts.setdefault(values.batch, at), values.row, chunk))
        else:
            places.append((at, 0, chunk))
    return [chunk for _, _, chunk in sorted(places, key=lambda place: place[:2])]


def _batch_of(kept: list[_Kept]) -> Batch:
    """Return the batch that texts are already, they and nobody else, or a new one of them.

    What texts of one batch have there is copied at once, not each by itself in each layer.
    """
    blocks: list[Rows] = []
    for batch, group in groupby(kept, key=lambda each: each.batch):
        some = list(group)
        if batch is None:
            blocks += [each.rows for each in some]
            continue
        if len(some) == len(kept) == batch.rows:
            return batch
        blocks.append(batch.some([each.values.row for each in some]))
    return Batch(blocks)


def _bucket(length: int) -> int:
    """Return a number that lengths have in common that may be padded to the longest of them."""
    return max(length, _SHORT).bit_length()


def _kept(sequence: Sequence) -> _Kept:
    assert isinstance(sequence.cache, _Kept), "who goes on was computed before"
    return sequence.cache


def _goes_on(chunk: Chunk) -> bool:
    """Return whether a chunk is the next token of a text that others can join, not one that is known."""
    kept = chunk.sequence.cache
    return isinstance(kept, _Kept) and kept.stop == chunk.start and chunk.size == 1 and is_whole(kept.values)
