"""Steps of decodes captured as CUDA graphs, one for each of some batch sizes, so that a step is one launch.

Where nothing can be captured a step is computed by the same function on the same memory, so that
everything but the capture itself behaves, and is tested, alike.
"""

from __future__ import annotations

import gc
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from contextlib import contextmanager, suppress
from functools import lru_cache

import torch

LOG = logging.getLogger(__name__)

_SMALL = (1, 2, 4)  # below these sizes go up by steps
_STEP, _FINE = 8, 256  # up to _FINE sizes are apart by _STEP, then by an eighth of themselves


def default_sizes(most: int) -> tuple[int, ...]:
    """Return the batch sizes that are captured if nobody says which: 1, 2, 4, 8, 16, 24, ... `most`."""
    sizes = [*_SMALL, *range(_STEP, _FINE + 1, _STEP)]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + sizes[-1] // 8 // _STEP * _STEP)
    return (*(size for size in sizes if size < most), most)


def chosen_sizes(asked: Several[int] | None, most: int) -> tuple[int, ...]:
    """Return the sizes to capture, rising: those asked for (None: the default) that `most` allows."""
    if asked is None:
        return default_sizes(most)
    return tuple(sorted({size for size in asked if 0 < size <= most}))


class Graphs:
    """A function of a batch size, captured for some sizes: a batch runs at the next size that was.

    The function reads and writes memory that stays where it is, whatever the size: its first rows.
    """

    def __init__(
        self, step: Callable[[int], None], sizes: Several[int], device: torch.device, *, captures: bool
    ) -> None:
        """`captures`: nothing in the function waits for the device, so it can be captured there."""
        self._step = step
        self._device = device
        self._captures = captures and device.type == "cuda"
        self.sizes = tuple(sorted(sizes))
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._captures else None  # one for all

    def capture(self) -> None:
        """Capture all sizes, the biggest first: the smaller ones find room in its memory."""
        for size in reversed(self.sizes):
            self.capture_one(size)

    def padded(self, count: int) -> int:
        """Return with how many rows a batch of `count` is computed."""
        at = bisect_left(self.sizes, count)
        return count if at == len(self.sizes) else self.sizes[at]

    def run(self, count: int) -> None:
        """Compute a batch; the rows behind it up to the next size must be padding."""
        size = self.padded(count)
        graph = self._graphs.get(size)
        if graph is None:
            self._step(size)
        else:
            graph.replay()

    def capture_one(self, size: int) -> None:
        """Capture one size, or run it once where nothing can be captured."""
        if not self._captures:
            self._step(size)
            return
        stream = capture_stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):  # kernels are compiled, and handles made, before the capture
            self._step(size)
            self._record(size)
        torch.cuda.current_stream(self._device).wait_stream(stream)

    def _record(self, size: int) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            record(graph, lambda: self._step(size), self._device, self._pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # whatever a model's own code does that can't be captured
            # The end of a capture that has failed fails, too; the reason is what came before
            LOG.warning("Steps can't be captured, and are slower for it: %s", error.__context__ or error)
            self._captures = False
            self._graphs.clear()
            torch.cuda.synchronize(self._device)  # raises what has broken the device, and was no refusal
            return
        self._graphs[size] = graph


_REFUSED: list[torch.cuda.CUDAGraph] = []  # kept: torch's allocators go on asking them


@lru_cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which all graphs of a device are captured: cuBLAS keeps 32 MiB for each stream."""
    return torch.cuda.Stream(device)


@torch.inference_mode()  # always: torch's generator keeps tensors from one capture to the next
def record(
    graph: torch.cuda.CUDAGraph,
    step: Callable[[], object],
    device: torch.device,
    pool: tuple[int, int] | None = None,
) -> None:
    """Capture what `step` queues on the current stream; raise RuntimeError where that can't be.

    `step` has run on this stream before. `pool`: the memory that the graph shares with others, which
    don't run at the same time; None: its own.
    """
    # Not by torch.cuda.graph(), which collects garbage before each: half a minute for a hundred of them
    pool = pool or torch.cuda.graph_pool_handle()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()  # during a capture nothing that is kept for later use is given back
    with _no_collection():  # garbage may hold what must not be freed in the middle of a capture
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            try:
                step()
            finally:
                graph.capture_end()
        except RuntimeError:
            _REFUSED.append(graph)
            # A capture that has failed leaves torch's allocator in it, which would give nothing back any more
            with suppress(RuntimeError):  # it wasn't left there
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
                torch._C._cuda_releasePool(torch.cuda.current_device(), pool)
            # Neither would torch's random numbers be any without their generator's leaving it: a clone has
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            raise


@contextmanager
def _no_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
