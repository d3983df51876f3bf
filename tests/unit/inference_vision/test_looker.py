"""A request and what it sees: queued together, or not at all."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

pytest.importorskip("torch")

from inference.sequences.sight import Sight
from inference.sequences.state import Integers
from inference.types import CoreRequest, LogprobsMode, Sampling
from inference.vision.looker import Looker, add_seeing

REQUEST = CoreRequest(
    id="a",
    prompt_ids=(1, 2),
    max_new_tokens=1,
    sampling=Sampling(),
    logprobs=LogprobsMode.RAW,
    top_n_tokens=0,
    prompt_logprobs=False,
    images=1,
)


class Looked:
    """Stands for a looker whose images have been looked at; counts those that are let go."""

    def __init__(self) -> None:
        self.released = 0

    def take(self, request_id: str, ids: Integers) -> Sight:
        return Sight([], [], np.empty(0, dtype=np.int64), release=self._release)

    def _release(self) -> None:
        self.released += 1


def test_a_request_is_queued_with_what_it_sees() -> None:
    looked, queued = Looked(), list[Sight | None]()
    add_seeing(lambda request, sight: queued.append(sight), REQUEST, cast(Looker, looked))
    assert queued[0] is not None
    assert looked.released == 0


def test_images_of_a_request_that_can_not_be_queued_are_let_go() -> None:
    looked = Looked()

    def add(request: CoreRequest, sight: Sight | None) -> None:
        raise RuntimeError("its grammar can't be begun")

    with pytest.raises(RuntimeError, match="can't be begun"):
        add_seeing(add, REQUEST, cast(Looker, looked))
    assert looked.released == 1


def test_a_request_with_images_is_refused_where_nobody_looks() -> None:
    with pytest.raises(ValueError, match="takes no images"):
        add_seeing(lambda request, sight: None, REQUEST, None)
