"""Adapters that come to a model at its level while it runs, and leave it again."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from inference.files.adapters import MERGE, AdapterFiles, refused
from inference.kernels.native_adapters import LowRank, NativeAdapter
from inference.levels.proof import trial
from inference.levels.proof_steps import packed_steps
from inference.models.lora import USELESS, Adaptable, load_adapter
from inference.sequences.computing import Runner


class Holder(Protocol):
    """A model that holds adapters by their places."""

    def native(self, low_ranks: dict[str, LowRank]) -> NativeAdapter:
        """Return one as the model computes with it; from any thread."""

    def hold(self, place: int, adapter: NativeAdapter | None) -> None:
        """Have one, or none any more, in a place; not during a step."""


@dataclass(frozen=True, slots=True, eq=False)
class LaterAdapters:
    """What is needed to take adapters up: checked as at the start, but for what a level makes of any."""

    linears: Adaptable
    idle: Set[str]  # those of them that text doesn't come through
    fixed: Set[str]  # those to which nothing can be added
    holder: Holder
    runner: Runner[Tensor]  # with a cache of its own, for trials
    prompts: list[NDArray[np.int64]]  # of a proof

    def read(self, files: AdapterFiles) -> NativeAdapter:
        """Read an adapter's weights; from any thread. Raises ModelUnavailable if it doesn't fit."""
        low_ranks = load_adapter(files, self.linears)
        heard = {path: low for path, low in low_ranks.items() if path not in self.idle}
        if not heard:
            raise refused(files.name, USELESS)
        for path in self.fixed & heard.keys():
            why = "by which experts are chosen or gated, states read or latents multiplied"
            raise refused(files.name, f"it adds to `{path}`, {why}: {MERGE}")
        return self.holder.native(heard)

    def attempt(self, name: str, place: int, adapter: NativeAdapter) -> Iterator[None]:
        """Put an adapter into a place and try it, a step at a time: between these others may be computed.

        Raises ModelUnavailable if it can't be used; then the place is empty again.
        """
        self.holder.hold(place, adapter)
        try:
            for complaint in trial(self.prompts, self.runner, place, packed_steps):
                if complaint:
                    raise refused(name, f"{complaint}: {MERGE}")
                yield
        except Exception:
            self.drop(place)
            raise

    def drop(self, place: int) -> None:
        """Have nothing in a place any more; not during a step."""
        self.holder.hold(place, None)
