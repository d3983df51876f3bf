"""The forward pass of one step through the model's own code: sequences packed, or one after the other."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from inference.models.counted import Positions
from inference.models.lora import Adapting
from inference.recurrent.cache import StateCache
from inference.sequences.faults import working_for
from inference.sequences.seen import seen_in
from inference.sequences.state import Chunk, Pieces

if TYPE_CHECKING:
    from inference.vision.eyes import Eyes


class StepTarget(Protocol):
    """What has to know a step before attention is called: the cache."""

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """Return what holds it in the host's memory, blocks first."""

    def begin(self, pieces: Pieces) -> None:
        """Take the step that the next forward pass computes."""


class PagedRunner:
    """Runs all pieces of a step as one row of tokens over a paged cache."""

    def __init__(
        self,
        model: PreTrainedModel,
        cache: StepTarget,
        adapting: Adapting | None = None,
        eyes: Eyes | None = None,
        states: StateCache | None = None,
    ) -> None:
        """`eyes` give the model's code rows of images, `states` what its layers keep; None: it has none."""
        self._model = model
        self._cache = cache
        self._adapting = adapting
        self._eyes = eyes
        self._states = states
        self._head = Head(model)
        self._positions = Positions(model)
        self.arrays = cache.arrays

    @torch.inference_mode()
    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> Tensor:
        """Return the logits, of shape (rows, vocabulary), in float32, all of them in any case."""
        device = self._model.device
        self._cache.begin(pieces)
        if self._adapting is not None:
            self._adapting.begin(pieces)
        rows = torch.from_numpy(pieces.rows).to(device)
        seen = None if self._eyes is None else seen_in(pieces, embedded=True)
        spatial = (
            None if seen is None or seen.positions is None else torch.from_numpy(seen.positions[:, None])
        )
        given = None
        if seen is not None and seen.rows is not None:
            given = torch.from_numpy(seen.at), seen.rows
        with ExitStack() as stack:
            if self._eyes is not None:
                stack.enter_context(self._eyes.giving(given))
            if self._states is not None:
                stack.enter_context(self._states.during(pieces))
            output = self._model(
                input_ids=torch.from_numpy(pieces.ids)[None].to(device),
                use_cache=False,
                **self._positions.of(torch.from_numpy(pieces.positions).to(device), spatial),
                **self._head.arguments(rows),
            )
        return self._head.logits(output.logits, rows)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What is known of a sequence after a piece of it."""

    values: Any  # transformers' cache
    stop: int  # how many tokens are computed
    logits: Tensor  # (rows, vocabulary): what the piece gave


class OneByOne(ABC):
    """Runs each piece alone. What a runner keeps of a sequence is a `Kept`, in the sequence's `cache`."""

    @torch.inference_mode()
    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> Tensor:
        """Return all logits, of shape (rows, vocabulary), in float32; raise RequestFault where a piece fails.

        What was computed before that is kept: the same pieces without the one that failed begin there.
        """
        return torch.cat([self._logits(chunk) for chunk in pieces.chunks])

    def _logits(self, chunk: Chunk) -> Tensor:
        kept = chunk.sequence.cache
        if isinstance(kept, Kept) and kept.stop == chunk.stop:
            return kept.logits
        with working_for(chunk.sequence):
            return self._run(chunk)

    @abstractmethod
    def _run(self, chunk: Chunk) -> Tensor:
        """Return a piece's logits (rows, vocabulary), in float32."""


class SequentialRunner(OneByOne):
    """Runs each piece alone through transformers' own cache: slow, and right for every model.

    With `cached` false nothing is kept between steps and each token computes the whole sequence
    again, for models whose cache isn't passed as `past_key_values`. `changing_length`: of more tokens
    all are rotated otherwise, so what is kept is of no use when a sequence comes to have them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        cached: bool,
        changing_length: int | None = None,
        adapting: Adapting | None = None,
    ) -> None:
        self._model = model
        self._adapting = adapting
        self._cached = cached
        self._changing_length = changing_length
        self._head = Head(model)

    def _run(self, chunk: Chunk) -> Tensor:
        kept = chunk.sequence.cache
        start = chunk.start if self._cached and not self._crosses(chunk) else 0
        ids = torch.from_numpy(chunk.sequence.ids[start : chunk.stop])[None].to(self._model.device)
        cache = {"past_key_values": kept.values if isinstance(kept, Kept) else None} if start else {}
        rows = torch.arange(chunk.stop - chunk.logit_rows, chunk.stop, device=ids.device) - start
        if self._adapting is not None:
            self._adapting.begin_rows(np.full(ids.shape[1], chunk.sequence.request.place))
        output = self._model(input_ids=ids, use_cache=self._cached, **cache, **self._head.arguments(rows))
        logits = self._head.logits(output.logits, rows)
        if self._cached:
            chunk.sequence.cache = Kept(output.past_key_values, chunk.stop, logits)
        return logits

    def _crosses(self, chunk: Chunk) -> bool:
        length = self._changing_length
        return length is not None and chunk.start <= length < chunk.stop


class Head:
    """Asks the model for the logits of some positions only, or picks them where it can't."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters

    def arguments(self, rows: Tensor) -> dict[str, Tensor]:
        """Return what the model's forward is told besides."""
        return {"logits_to_keep": rows} if self._selects else {}

    def logits(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return (rows, vocabulary) of the model's (1, positions, vocabulary)."""
        return self.of_each(logits, rows)[0]

    def of_each(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return (sequences, rows, vocabulary) of the model's (sequences, positions, vocabulary)."""
        picked = logits if self._selects else logits.index_select(1, rows)
        return picked.float()
