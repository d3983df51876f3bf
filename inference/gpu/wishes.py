"""What requests wish of their tokens beyond temperature, as a device holds it: filters, and penalties.

A slot has a row of numbers (`Wish`), sent when its sequence enters, and a mark for each token of the
vocabulary: whether it is in the prompt, and how often it was generated. The marks of who has a
penalty are sent once, too; from then on the device counts the tokens that it chooses.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.gpu.packing import upload
from inference.sampling.recipe import MOST_COUNTED, by_temperature_alone, drawn_by_device
from inference.sequences.state import Integers, Sequence
from inference.types import CoreRequest, Sampling

IN_PROMPT = MOST_COUNTED + 1  # of a mark; its lower bits are a count
_WIDTH = 8  # marks of a slot are a multiple of these, so that rows are aligned to 16 bytes
_WEAKEST = 1e-30  # what a smaller repetition penalty would do, this one does, as on the host

_MOST_TOKENS = 2**31 - 1  # a top-k beyond keeps all, too

Marks = NDArray[np.int16]


class Wish(IntEnum):
    """The columns of a slot's row."""

    SHAPED = 0  # not 0: there is anything to do
    TOP_K = 1  # 0: off
    TOP_P = 2  # infinity: off
    LEAST = 3  # the logarithm of min-p, as float32; minus infinity: off
    REPETITION = 4  # 1: off
    FREQUENCY = 5  # 0: off
    PRESENCE = 6  # 0: off
    PENALISED = 7  # not 0: one of the three is on, and the slot's marks are kept


@dataclass(frozen=True, slots=True, eq=False)
class Wishes:
    """What R rows of logits wish, by their slots."""

    slots: Tensor  # (R,) int32: whose row it is in what follows
    table: Tensor  # (slots, wishes) float64, see `Wish`
    marks: Tensor  # (slots, at least the vocabulary) int16
    lengths: Tensor  # (slots,) int32: of texts,
    ahead: int  # in which so many tokens are counted that these rows are about to choose: 0 or 1
    seeds: Tensor  # (slots,) int64
    temperatures: Tensor  # (slots,) float32; 0: the likeliest token
    warped: Tensor  # (slots,) bool: log-probabilities are of what is left, not the model's own


class SlotWishes:
    """The wishes of all slots, and of one more that is nobody's."""

    def __init__(self, slots: int, vocabulary: int, device: torch.device) -> None:
        width = -(-vocabulary // _WIDTH) * _WIDTH
        self._device = device
        self._shaped = np.zeros(slots, dtype=np.bool_)
        self.table = torch.zeros((slots, len(Wish)), dtype=torch.float64, device=device)
        self.marks = torch.zeros((slots, width), dtype=torch.int16, device=device)

    @property
    def bytes(self) -> int:
        """Return how much memory they take."""
        return self.table.nbytes + self.marks.nbytes

    def any(self, slots: Integers) -> bool:
        """Return whether one of the slots wishes anything."""
        return bool(self._shaped[slots].any())

    def enter(self, sequences: Several[Sequence]) -> None:
        """Send what sequences wish in the slots that they have entered."""
        rows = {each.slot: row_of(each.request) for each in sequences if each.slot >= 0}
        slots = np.array(list(rows), dtype=np.int64)
        wanted = np.array(list(rows.values())).reshape(-1, len(Wish))
        shaped = wanted[:, Wish.SHAPED] > 0
        if not (shaped.any() or self._shaped[slots].any()):
            return
        self._shaped[slots] |= shaped  # first: what is sent in part is written over, whoever enters next
        at, values = upload([slots, wanted.view(np.int64)], self._device)
        self.table[at] = values.view(torch.float64)
        for each in sequences:
            if each.slot >= 0 and rows[each.slot][Wish.PENALISED]:
                (marks,) = upload([marks_of(each, self.marks.shape[1]).view(np.int64)], self._device)
                self.marks[each.slot] = marks.view(torch.int16)
        self._shaped[slots] = shaped

    def count(self, slots: Tensor, tokens: Tensor) -> None:
        """Count the tokens (R,) that the slots (R,), both int64, have chosen, for those with penalties."""
        marks = self.marks[slots, tokens]
        counted = (self.table[slots, Wish.PENALISED] > 0) & ((marks & MOST_COUNTED) < MOST_COUNTED)
        self.marks[slots, tokens] = marks + counted.short()


def row_of(request: CoreRequest) -> list[float]:
    """Return a request's row; an empty one if the device has nothing to do beyond temperature."""
    sampling = request.sampling
    if by_temperature_alone(sampling) or not drawn_by_device(request, shapes=True):
        return [0.0] * len(Wish)
    penalties = _penalties(sampling)
    with np.errstate(divide="ignore"):
        least = float(np.log(np.float32(sampling.min_p)))
    top_p = sampling.top_p if sampling.top_p < 1 else np.inf  # as the host's filters have it
    top_k = float(min(sampling.top_k, _MOST_TOKENS))
    return [1.0, top_k, top_p, least, *penalties, float(penalties != [1.0, 0.0, 0.0])]


def marks_of(sequence: Sequence, width: int) -> Marks:
    """Return a mark for each of so many tokens of what is known of a sequence's text."""
    prompt, text = np.split(sequence.ids, [sequence.prompt_length])
    marks = np.minimum(np.bincount(text, minlength=width)[:width], MOST_COUNTED).astype(np.int16)
    marks[prompt[prompt < width]] |= IN_PROMPT
    return marks


def _penalties(sampling: Sampling) -> list[float]:
    weakest, strongest = np.float32(_WEAKEST), np.float32(1 / _WEAKEST)
    repetition = np.clip(np.float32(sampling.repetition_penalty), weakest, strongest)
    return [float(repetition), sampling.frequency_penalty, sampling.presence_penalty]
