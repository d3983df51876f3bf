"""Steps on a device: prompts as they come, decodes by graph, tokens chosen there and read later."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.gpu.decoding import Around, TorchAround, TritonAround
from inference.gpu.graphs import Graphs
from inference.gpu.model import DeviceModel
from inference.gpu.packing import pack_batch, slots_of, upload
from inference.gpu.slots import DeviceState, MirroredTable
from inference.sampling.sampler import last_rows
from inference.sequences.state import Integers, Pieces
from inference.shortage import is_shortage


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """What a device has chosen for the n sequences that a step gives a token, in their order."""

    tokens: Integers  # (n,)
    logprobs: NDArray[np.float64]  # (n,); not a number where the row of logits isn't

    def of(self, rows: list[int]) -> Drawn:
        """Return those of some of the sequences."""
        return Drawn(self.tokens[rows], self.logprobs[rows])


class Launched:
    """A step on its way: nothing of it needs to be there yet."""

    def __init__(self, logits: Tensor, results: Tensor, done: torch.cuda.Event | None) -> None:
        """Take (rows, vocabulary) on the device, and (n, 2) of tokens and log-probabilities on the host."""
        self.logits = logits  # of the rows that the pieces name; until the next step is launched
        self._results = results
        self._done = done

    def read(self) -> Drawn:
        """Return what was chosen, once it is there; raise what went wrong on the device."""
        if self._done is not None:
            self._done.synchronize()
        values = self._results.numpy()
        return Drawn(values[:, 0].astype(np.int64), values[:, 1].copy())


class GpuRunner:
    """Computes a step's pieces and chooses a token for each sequence that it completes.

    Every row gets a token by the device's own way of choosing; a sequence that wants another way is
    given one by the host, by `DeviceState.tell`. At most two steps may be on their way.
    """

    def __init__(
        self, model: DeviceModel, table: MirroredTable, sizes: Several[int], *, vocabulary: int = 0
    ) -> None:
        """`sizes`: of decode batches, see `Graphs`; `vocabulary`: see `DeviceState`."""
        most = len(table.lengths)
        self.model = model
        self.state = DeviceState(table, model.device, vocabulary, adapts=model.adapts)
        self.graphs = Graphs(self._decode, sizes, model.device, captures=model.ops.captures)
        self._shaping = Graphs(self._shape, sizes, model.device, captures=model.ops.captures)
        if model.states is not None:
            model.states.allocate(most, table.snapshots)
        self._around: Around = TritonAround() if model.ops.captures else TorchAround()
        self._members: Integers | None = None  # the decodes' slots, as they were sent last
        self._wishing = False  # one of them has a request that wishes more than temperature
        self._picked = torch.full((most,), self.state.padding, dtype=torch.int32, device=model.device)
        self._drawn = torch.zeros((most, 2), dtype=torch.float64, device=model.device)
        self._logits: Tensor | None = None  # (most, vocabulary): of decodes; made by the first
        self._parts: dict[int, tuple[Tensor, Tensor]] = {}  # `starts` and `query_blocks` of decode batches
        pinned = model.device.type == "cuda"
        self._results = [torch.zeros((most, 2), dtype=torch.float64, pin_memory=pinned) for _ in range(2)]
        self._events = [torch.cuda.Event() if pinned else None for _ in range(2)]
        self._turn = 0

    @torch.inference_mode()
    def warm_up(self, progress: Callable[[str], None], *, tune: bool = True) -> None:
        """Have linears measured (`tune`), and graphs captured."""
        chosen = self.model.warm_up(self.graphs.sizes or (1,)) if tune else ""
        if chosen:
            progress(chosen)
        for size in reversed(self.graphs.sizes):  # the smaller ones find room in the biggest one's memory
            self.capture_size(size)

    @torch.inference_mode()
    def capture_size(self, size: int) -> None:
        """Capture the graphs of one size."""
        self.graphs.capture_one(size)
        if self.state.wishes is not None:
            self._shaping.capture_one(size)

    @torch.inference_mode()
    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> Launched:
        """Queue a step behind what the device does already.

        One that raises can be computed again: of what it reads it has changed nothing.
        """
        try:
            return self._run(pieces)
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # who keeps the error doesn't keep activations
            if is_shortage(error):
                self.give_back()
            raise

    def give_back(self) -> None:
        """Let libraries, which take memory for themselves, have what torch keeps for later use."""
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _run(self, pieces: Pieces) -> Launched:
        self.state.update()
        if self.model.states is not None:
            self.model.states.move(pieces.table.moves)
        if pieces.prompts:
            return self._run_prompts(pieces)
        count = len(pieces.slots)
        self._pick(pieces.slots)
        self.graphs.run(count)
        assert self._logits is not None, "a step of decodes leaves its logits"
        if self._wishing:
            with self._stepping_back(self._picked[:count]):
                self._shaping.run(count)
        return self._launched(self._logits[:count], self._drawn[:count])

    @contextmanager
    def _stepping_back(self, slots: Tensor) -> Iterator[None]:
        """Undo what was kept of the slots (n,) where what is done on top of it fails."""
        try:
            yield
        except Exception:
            self.state.step_back(slots.long())
            raise

    def _run_prompts(self, pieces: Pieces) -> Launched:
        model, decodes = self.model, len(pieces.decodes)
        longest = int((pieces.stops - pieces.starts).max())
        tile, splits = model.tile(longest), model.splits(len(pieces.slots), longest)
        batch = pack_batch(pieces, self.state.tables, tile=tile, splits=splits, adapts=model.adapts)
        if decodes:
            self.state.fill_in(batch.ids, batch.slots[:decodes].long())
        logits = model.forward(batch)
        last = last_rows(pieces)
        if not len(last):  # pieces of prompts, none of them a last one
            return self._launched(logits, self._drawn[:0])
        lengths = pieces.table.lengths[slots_of(pieces)]
        rows, slots, counts = upload([last, slots_of(pieces), lengths], model.device)
        wanted = logits if len(last) == len(logits) else logits[rows]
        sampled = model.ops.sample(wanted, self.state.draws(slots, counts))
        drawn = torch.stack([sampled.tokens.double(), sampled.logprobs.double()], 1)
        self._keep(slots_of(pieces), slots, counts, wanted, drawn)
        return self._launched(logits, drawn)

    def _keep(self, where: Integers, slots: Tensor, lengths: Tensor, logits: Tensor, drawn: Tensor) -> None:
        """Make the tokens of `drawn` (n, 2) the newest of slots (n,); those that wish it are chosen anew."""
        state = self.state
        if state.wishes is None or not state.wishes.any(where):
            state.keep(slots, lengths, drawn[:, 0].long())
            return
        state.lengths[slots] = lengths.int()
        wishes = state.wish(slots.int(), ahead=0)
        self.model.ops.shape(logits, wishes, drawn)
        state.keep(slots, lengths, drawn[:, 0].long())  # last, but for what can be undone
        with self._stepping_back(slots):
            self._around.settle(state, wishes, drawn)

    def _pick(self, slots: Integers) -> None:
        """Send which slots decode, if these are others than before."""
        if slots is self._members:
            return
        row = np.full(len(self._picked), self.state.padding, dtype=np.int32)
        row[: len(slots)] = slots
        (sent,) = upload([row], self.model.device)
        self._picked.copy_(sent)
        self._members = slots
        self._wishing = self.state.wishes is not None and self.state.wishes.any(slots)

    def _decode(self, size: int) -> None:
        """Let the first `size` slots that are picked go on by a token; waits for nothing, copies nothing."""
        model, state = self.model, self.state
        starts, query_blocks = self._parts_of(size)
        slots = self._picked[:size]
        begun = self._around.begin(state, slots)
        splits = model.splits(size, 1)
        logits = model.forward(
            begun.batch(state, slots, starts, query_blocks, tile=model.tile(1), splits=splits)
        )
        if self._logits is None:
            self._logits = logits.new_zeros((len(self._picked), logits.shape[1]))
        self._logits[:size] = logits  # a graph's own are overwritten by other graphs' capture and replay
        sampled = model.ops.sample(logits, begun.draws)
        self._around.end(state, slots, begun, sampled, self._drawn[:size])  # last, as with prompts

    def _shape(self, size: int) -> None:
        """Choose once more for those of the first `size` slots that wish it, by the logits of `_decode`."""
        assert self._logits is not None, "a step of decodes leaves its logits"
        wishes, drawn = self.state.wish(self._picked[:size], ahead=1), self._drawn[:size]
        self.model.ops.shape(self._logits[:size], wishes, drawn)
        self._around.settle(self.state, wishes, drawn)  # last, as with prompts

    def _parts_of(self, size: int) -> tuple[Tensor, Tensor]:
        parts = self._parts.get(size)
        if parts is None:
            order = torch.arange(size + 1, dtype=torch.int32, device=self.model.device)
            parts = order, torch.stack([order[:-1], torch.zeros_like(order[:-1])])
            self._parts[size] = parts
        return parts

    def _launched(self, logits: Tensor, drawn: Tensor) -> Launched:
        """Have what was chosen sent to the host, behind the step."""
        self._turn = 1 - self._turn
        results, done = self._results[self._turn][: len(drawn)], self._events[self._turn]
        results.copy_(drawn, non_blocking=True)
        if done is not None:
            done.record()
        return Launched(logits, results, done)
