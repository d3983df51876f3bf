"""The tokens of a step on a device: the device's own, and the host's for requests that want more."""

from __future__ import annotations

import traceback

import numpy as np
import torch
from torch import Tensor

from inference.gpu.runner import Drawn, Launched
from inference.gpu.slots import DeviceState
from inference.sampling.sampler import NOT_FINITE, Columns, TorchSampler, held_rows, last_rows
from inference.sequences.chosen import Chosen
from inference.sequences.faults import StepLost
from inference.sequences.state import Integers, Pieces, Sequence
from inference.sequences.work import Work


def chosen_by_device(sequences: tuple[Sequence, ...], drawn: Drawn) -> Chosen:
    """Return what a device has chosen for sequences (n,) that leave it to it."""
    broken = np.isnan(drawn.logprobs)
    failures = {sequences[row]: NOT_FINITE for row in broken.nonzero()[0]} if broken.any() else {}
    return Chosen(drawn.tokens, drawn.logprobs.tolist(), failures=failures)


class GpuSampler:
    """Chooses the tokens of each sequence the same way in every step, and tells the device of the host's."""

    def __init__(self, host: TorchSampler, state: DeviceState) -> None:
        self._host = host
        self._state = state
        self._sequences: tuple[Sequence, ...] = ()
        self._own: Integers = np.empty(0, dtype=np.int64)  # rows of these that the host chooses
        self._askers: tuple[Sequence, ...] = ()  # and whose they are

    def tokens_only(self, pieces: Pieces) -> bool:
        """Return no: the device chooses with what it computes, whoever is told of it."""
        return False

    @torch.inference_mode()
    def choose(self, work: Work, launched: Launched | None) -> Chosen:
        """Return what a step says of each sequence; None if there are no pieces.

        Where that fails the device knows no more than the host then, and the step can be computed again.
        """
        try:
            return self._choose(work, launched)
        except Exception as error:
            traceback.clear_frames(error.__traceback__)
            self._take_back(work)
            raise

    def _choose(self, work: Work, launched: Launched | None) -> Chosen:
        prompts = {} if launched is None else self._host.read(work, launched.logits)
        sequences = work.sequences
        if sequences is not self._sequences:
            self._sort(sequences)
        columns = Columns(len(sequences))
        rows = _rows_of(work)
        if launched is not None:
            drawn = launched.read()
            columns.tokens[: len(rows)] = drawn.tokens[rows]
            columns.logprobs[: len(rows)] = drawn.logprobs[rows]
        if self._askers:
            columns.put(self._own, self._host.pick(self._askers, self._values(work, launched, rows)))
            self._tell(work, columns)
        return columns.chosen(sequences, prompts)

    def _sort(self, sequences: tuple[Sequence, ...]) -> None:
        own = [row for row, each in enumerate(sequences) if not self._state.chooses(each.request)]
        self._sequences = sequences
        self._own = np.array(own, dtype=np.int64)
        self._askers = tuple(sequences[row] for row in own)

    def _values(self, work: Work, launched: Launched | None, rows: Integers) -> Tensor:
        """Return the logits of those that the host chooses for: the pieces' first, then the held ones."""
        parts = []
        pieces = self._own[self._own < len(rows)]
        if launched is not None and len(pieces):
            at = last_rows(work.pieces)[rows[pieces]]
            whole = len(at) == len(launched.logits)
            parts = [
                launched.logits if whole else launched.logits[torch.from_numpy(at).to(self._state.device)]
            ]
        if work.resumed:  # they have grammars: all of them are the host's
            parts.append(held_rows(work.resumed))
        return torch.cat([part.float() for part in parts])

    def _take_back(self, work: Work) -> None:
        """Tell the device of the newest tokens that the host knows, which it went on from by itself."""
        try:
            self._state.take_back([each for each in work.pieces.sampling if each not in work.gone])
        except Exception as error:  # of whatever kind: what the device knows isn't known any more
            raise StepLost("the device can't be told what to go on from") from error

    def _tell(self, work: Work, columns: Columns) -> None:
        slots = np.array([sequence.slot for sequence in self._askers], dtype=np.int64)
        lengths = work.pieces.table.lengths[slots] + 1
        self._state.tell(slots, columns.tokens[self._own], lengths)


def _rows_of(work: Work) -> Integers:
    """Return which of the step's sequences, counted as `Pieces.sampling` does, get their token."""
    sampling = work.pieces.sampling
    if not work.late and not work.gone:
        return np.arange(len(sampling))
    return np.array([row for row, each in enumerate(sampling) if work.chooses(each)], dtype=np.int64)
