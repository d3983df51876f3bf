"""Linears on a device, and which way of computing each is the fastest for up to 256 rows, as measured."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TypeVar

import torch
from torch import Tensor, nn

from inference.gpu.compiling import compile_together
from inference.gpu.graphs import capture_stream, record
from inference.gpu.ops import ExpertWay, GatedWay, MultiplyGated, Ops, Way, Weight
from inference.models.linears import Packed, make_linear
from inference.models.numberless import Numberless
from inference.models.quantised import make_quantised
from inference.quantised.blocks import Blocks
from inference.quantised.codes import Codes

LOG = logging.getLogger(__name__)

_NEAR = 1e-2  # of the result's norm: what another order of sums may change in 16 bits
_BETTER = 0.98  # of the time of what is there already
# Rows that other ways than one product by cuBLAS can be better for. Each size of a few is measured, of more
# one in so many, which speaks for those below it
FEW, MANY, APART = 16, 256, 32

_MOST_SECONDS = 30.0  # for measuring; what isn't measured by then is computed as ever, and counted
_REPLAYS = 6  # of which the first warms up, and the fastest counts

Seconds = Callable[[Callable[[], object]], float]  # of one call
Form = tuple[int, ...]  # of a weight: outputs, inputs, and how it is in few bits
_Way = TypeVar("_Way", Way, GatedWay, ExpertWay)
_Linear = TypeVar("_Linear")
Call = Callable[[Tensor, _Linear], Tensor]


class Deadline:
    """The time that measuring may take, from the first question on: compilers have needed theirs before."""

    def __init__(self, seconds: float = _MOST_SECONDS) -> None:
        self._seconds = seconds
        self._end: float | None = None

    def __call__(self) -> bool:
        """Return whether it is over."""
        if self._end is None:
            self._end = monotonic() + self._seconds
        return monotonic() >= self._end


def _never() -> bool:
    return False


class Multiplier:
    """Computes linears, each shape in the way that was chosen for it, the operations' own until then."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self._chosen: dict[tuple[int, Form], Way] = {}  # by rows, and the weight's form
        self._gates: dict[tuple[int, Form], GatedWay] = {}  # of a linear and the gate behind it
        self._names: Counter[str] = Counter()  # of what was chosen, once for each measurement
        self._late = 0  # ways that there was no time to measure

    def __call__(self, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        """Return (M, N) of x (M, K), weight (N, K) and bias (N,)."""
        way = self._chosen.get((x.shape[0], _form(weight))) if self._chosen else None
        return self.ops.linear(x, weight, bias) if way is None else way.multiply(x, weight, bias)

    def gated(self, x: Tensor, weight: Weight, bias: Tensor | None, activation: str) -> Tensor:
        """Return (M, I) of x (M, K), gate and up as one weight (2 * I, K), and their bias."""
        way = self._gates.get((x.shape[0], _form(weight))) if self._gates else None
        if way is None:
            return self.ops.gated(self(x, weight, bias), activation)
        return way.multiply(x, weight, bias, activation)

    def tune(
        self,
        linears: Several[DeviceLinear],
        gates: Several[DeviceLinear],
        activation: str,
        sizes: Several[int],
        seconds: Seconds,
        over: Callable[[], bool],
    ) -> None:
        """Choose by measuring, until it is `over`, how linears are computed in steps of so many tokens.

        The fewest tokens first; `gates`: those of the linears that have a gate behind them.
        """
        few = sorted({size for size in sizes if size <= FEW})
        more = sorted({size for size in sizes if FEW < size <= MANY})
        speaking = sorted({min(-(-size // APART) * APART, more[-1]) for size in more})
        compile_together(self.ops, partial(self._try_all, linears, gates, activation, [*few, *speaking]))
        for size in few:
            self.choose(linears, size, seconds, over)
            self.choose_gates(gates, activation, size, seconds, over)
        for size in speaking:
            self.choose(linears, size, seconds, over)
        self._spread(more, speaking)

    def _spread(self, sizes: Several[int], speaking: Several[int]) -> None:
        """Compute each of the sizes in the way that was chosen for the next one that was measured."""
        chosen = dict(self._chosen)
        for size in sizes:
            measured = next(each for each in speaking if each >= size)
            for (rows, form), way in chosen.items():
                if rows == measured:
                    self._chosen[size, form] = way

    def choose(
        self, linears: Several[DeviceLinear], rows: int, seconds: Seconds, over: Callable[[], bool] = _never
    ) -> None:
        """Choose by measuring how linears are computed in steps of so many tokens."""
        for same, x in _cases(linears, rows):
            ways = list(self.ops.ways(rows, same[0].weight))
            if not ways:
                continue
            calls = ((way, partial(_multiply, way)) for way in self._in_time(ways, over))
            best = fastest(partial(_multiply, Way("", self.ops.linear)), calls, same, x, seconds)
            if best is not None:
                self._chosen[rows, _form(same[0].weight)] = best
                self._names[best.name] += 1

    def choose_gates(
        self,
        linears: Several[DeviceLinear],
        activation: str,
        rows: int,
        seconds: Seconds,
        over: Callable[[], bool] = _never,
    ) -> None:
        """Do the same for linears with a gate behind them, whose ways without it have been chosen."""
        for same, x in _cases(linears, rows):
            ways = list(self.ops.gated_ways(rows, same[0].weight))
            if not ways:
                continue
            calls = ((way, partial(_gate, way.multiply, activation)) for way in self._in_time(ways, over))
            best = fastest(partial(_gate, self.gated, activation), calls, same, x, seconds)
            if best is not None:
                self._gates[rows, _form(same[0].weight)] = best
                self._names[best.name] += 1

    def _in_time(self, ways: Iterable[_Way], over: Callable[[], bool]) -> Iterator[_Way]:
        for way in ways:
            if over():
                self._late += 1
            else:
                yield way

    def _try_all(
        self, linears: Several[DeviceLinear], gates: Several[DeviceLinear], activation: str, sizes: list[int]
    ) -> None:
        for size in sizes:
            for (one, *_), x in _cases(linears, size):
                for way in self.ops.ways(size, one.weight):
                    way.multiply(x, one.weight, one.bias)
            for (one, *_), x in _cases(gates, size):
                for gated in self.ops.gated_ways(size, one.weight):
                    gated.multiply(x, one.weight, one.bias, activation)

    def __str__(self) -> str:
        """Return what was chosen, and what was left unmeasured, as a line for a person, or ""."""
        chosen = [f"{count} by {name}" for name, count in self._names.most_common()]
        if not chosen and not self._late:
            return ""
        late = f"; there was no time to measure {self._late} ways" if self._late else ""
        ways = ", ".join([*chosen, "others as ever"])
        return f"Shapes of linears, measured for up to {MANY} tokens: {ways}{late}"


@dataclass(frozen=True, slots=True, eq=False)
class DeviceLinear:
    """A linear's numbers, and who multiplies."""

    multiply: Multiplier
    weight: Weight  # (N, K)
    bias: Tensor | None  # (N,), in the weight's dtype

    @property
    def outputs(self) -> int:
        """Return N."""
        return self.weight.shape[0]

    def __call__(self, x: Tensor) -> Tensor:
        """Return (M, N) of (M, K)."""
        return self.multiply(x, self.weight, self.bias)

    def gated(self, x: Tensor, activation: str) -> Tensor:
        """Return (M, N / 2): the first half, by its activation, times the second."""
        return self.multiply.gated(x, self.weight, self.bias, activation)


def device_linear(
    multiply: Multiplier, dtype: torch.dtype, weight: Tensor, bias: Tensor | None, codes: Codes | None = None
) -> DeviceLinear:
    """Return a linear in `dtype`: the same memory if it is in it already, and its rows lie in their order.

    A weight that is given in few bits has no other numbers.
    """
    bias = None if bias is None else bias.to(dtype)
    if codes is not None:
        return DeviceLinear(multiply, Blocks.of(codes, dtype), bias)
    return DeviceLinear(multiply, weight.to(dtype).contiguous(), bias)


def plain_linear(weight: Weight, bias: Tensor | None) -> nn.Linear:
    """Return what computes the same in a model's own code."""
    if isinstance(weight, Blocks):
        return make_quantised(weight.unpack(), bias, weight.dtype)
    return make_linear(weight, bias)


class SwappedLinear(Packed):
    """Stands in a model's own code for a linear."""

    def __init__(self, linear: DeviceLinear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, given: Tensor) -> Tensor:
        """Return (..., n)."""
        return self.linear(given.reshape(-1, given.shape[-1])).unflatten(0, given.shape[:-1])

    def unpack(self) -> nn.Linear:
        """Return the linear again."""
        return plain_linear(self.linear.weight, self.linear.bias)

    @property
    def weight(self) -> Tensor:
        """Return the weight, without numbers if it is in few bits."""
        weight = self.linear.weight
        if isinstance(weight, Blocks):
            return Numberless.of(weight.shape, weight.dtype, weight.device)
        return weight

    @property
    def nbytes(self) -> int:
        """Return what the weight takes."""
        return self.linear.weight.nbytes

    @property
    def form(self) -> str:
        """Return what the weight is kept in."""
        weight = self.linear.weight
        if isinstance(weight, Blocks):
            return f"{weight.bits} bits"
        return str(weight.dtype).removeprefix("torch.")


@torch.inference_mode()  # for the same reason as `record`: replaying writes to the generator's tensors, too
def graph_seconds(run: Callable[[], object]) -> float:
    """Return what a call takes of a GPU's time: captured first, as launching from Python would hide it.

    Before each replay the device reads other memory, so that it hasn't come to rest when the replay is
    queued, which would be measured, too; and its cache holds nothing of what the call will read.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    stream, graph = capture_stream(device), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()  # kernels are compiled here, and cuBLAS takes its memory
        record(graph, run, device)
    torch.cuda.current_stream().wait_stream(stream)
    taken, wash = [], _washer(device)
    for _ in range(_REPLAYS):
        wash()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        taken.append(start.elapsed_time(stop) / 1000)
    return min(taken[1:])


def _washer(device: torch.device) -> Callable[[], object]:
    """Return what reads twice as much of a device's memory as its cache holds, and changes nothing.

    That takes some 30 us, longer than a launch. Without the room for it, it returns what does nothing.
    """
    size = 2 * torch.cuda.get_device_properties(device).L2_cache_size
    try:
        return torch.zeros(size // 4, device=device).sum
    except torch.OutOfMemoryError:
        LOG.debug("There is no room to wash the device's cache, and what is measured may come from there")
        return lambda: None


def _form(weight: Weight) -> Form:
    """Return all that it depends on how a weight is best multiplied with."""
    return weight.form if isinstance(weight, Blocks) else tuple(weight.shape)


def _cases(linears: Several[DeviceLinear], rows: int) -> Iterator[tuple[list[DeviceLinear], Tensor]]:
    """Yield linears of one shape, with something to multiply.

    They are computed one after the other, as a step does it: weights that stayed in the device's
    cache from one time to the next would say nothing.
    """
    alike: dict[Form, list[DeviceLinear]] = {}
    for linear in linears:
        alike.setdefault(_form(linear.weight), []).append(linear)
    for same in alike.values():
        weight = same[0].weight
        # Drawn on the host: a capture that failed leaves the device's own generator unusable
        yield same, torch.randn(rows, weight.shape[1]).to(weight.device, weight.dtype)


def fastest(
    own: Call[_Linear],
    ways: Iterable[tuple[_Way, Call[_Linear]]],
    same: list[_Linear],
    x: Tensor,
    seconds: Seconds,
) -> _Way | None:
    """Return the way that takes the least time for all of them; None: nothing is better than their own."""
    best, least = None, seconds(partial(_all, own, x, same)) * _BETTER
    expected = own(x, same[0]).float()
    for way, call in ways:
        try:
            near = (call(x, same[0]).float() - expected).norm() <= _NEAR * expected.norm()
            taken = seconds(partial(_all, call, x, same)) if near else float("inf")
        except Exception:  # a tile that this device can't hold, whatever its compiler says to that
            LOG.debug("A linear can't be computed by %s", way.name, exc_info=True)
            if x.is_cuda:
                torch.cuda.synchronize(x.device)  # raises what has broken the device, and was no refusal
            continue
        if taken < least:
            best, least = way, taken
    return best


def _all(call: Call[_Linear], x: Tensor, same: list[_Linear]) -> list[Tensor]:
    return [call(x, each) for each in same]


def _multiply(way: Way, x: Tensor, linear: DeviceLinear) -> Tensor:
    return way.multiply(x, linear.weight, linear.bias)


def _gate(multiply: MultiplyGated, activation: str, x: Tensor, linear: DeviceLinear) -> Tensor:
    return multiply(x, linear.weight, linear.bias, activation)
