"""A prompt with images that a model's own code was asked about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from inference.sequences.state import Integers

if TYPE_CHECKING:
    from inference.vision.processor import Prepared


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A prompt with images, and the logits that the model's own code has for its text."""

    ids: tuple[int, ...]
    images: tuple[Prepared, ...]
    rows: Integers  # (n,): its tokens that stand for themselves
    expected: Tensor  # (n, vocabulary), float32
    types: str | None  # what the model's code calls the kinds of tokens, if it is told them

    def first(self, length: int) -> Sample:
        """Return what the model's own code says of the prompt's first tokens, if none sees text behind it."""
        count = int(np.searchsorted(self.rows, length))
        return replace(self, ids=self.ids[:length], rows=self.rows[:count], expected=self.expected[:count])
