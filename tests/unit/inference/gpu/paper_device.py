"""The paper model on a paper device, which keeps newest tokens to itself, and says them when it is read."""

from __future__ import annotations

import numpy as np

from inference.gpu.runner import Drawn
from inference.sampling.recipe import drawn_by_device
from inference.sequences.chosen import Chosen
from inference.sequences.state import Pieces, Sequence
from inference.sequences.work import Work
from tests.unit.inference.paper_model import VOCABULARY, PaperRunner, PaperSampler, pick


class PaperLaunch:
    """A step whose checksums are known to the device, and to the host once it is read."""

    def __init__(self, values: list[int], drawn: list[int]) -> None:
        self.values = values
        self.drawn = drawn
        self.broken = False  # set by a test: reading raises

    def read(self) -> Drawn:
        if self.broken:
            raise RuntimeError("the device is out of paper")
        return Drawn(np.array(self.drawn, dtype=np.int64), np.full(len(self.drawn), -0.5))


class PaperDevice(PaperRunner):
    """Computes at once, by its own newest tokens where sequences go on: the host's may not be there yet."""

    def __init__(self) -> None:
        super().__init__()
        self.newest: dict[int, int] = {}  # by slot
        self.launched: list[PaperLaunch] = []

    def run(  # type: ignore[override]
        self, pieces: Pieces, *, tokens_only: bool = False
    ) -> PaperLaunch:
        count = len(pieces.decodes)
        pieces.ids[:count] = [self.newest[slot] for slot in pieces.slots[:count].tolist()]
        values = super().run(pieces, tokens_only=tokens_only)
        drawn, end = [], 0
        for chunk in pieces.chunks:
            end += chunk.logit_rows
            if chunk.samples:
                token = pick(values[end - 1], range(VOCABULARY), hides_eos=False)
                self.newest[chunk.sequence.slot] = token
                drawn.append(token)
        self.launched.append(PaperLaunch(values, drawn))
        return self.launched[-1]


class PaperDeviceSampler(PaperSampler):
    """Chooses for those that want the host to, and tells the device; takes its tokens of the others."""

    def __init__(self, device: PaperDevice) -> None:
        self.device = device

    def choose(self, work: Work, launched: PaperLaunch | None) -> Chosen:  # type: ignore[override]
        if launched is not None:
            launched.read()
        chosen = super().choose(work, None if launched is None else launched.values)
        drawn: dict[Sequence, int] = {}
        if launched is not None:
            drawn = dict(zip(work.pieces.sampling, launched.drawn, strict=True))
        for sequence, token in zip(work.sequences, chosen.tokens.tolist(), strict=True):
            if drawn_by_device(sequence.request):
                assert drawn[sequence] == token
            self.device.newest[sequence.slot] = token
        return chosen
