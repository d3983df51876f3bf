"""CUDA's rules without CUDA: tensors that say they are on a GPU, and fail where a GPU's would.

Numbers are computed on the CPU. Operands must be on one device; what makes the host wait, and what is
copied, is put down. Copies to pinned memory arrive when an event behind them has been waited for, and
what is copied from there must stay as it is until then. A graph computes again what was captured, in
the memory that it had then: what of it nobody holds is lost after each replay, and what it reads must
still be held. Only the thread that began has such tensors.
"""

from __future__ import annotations

import dataclasses
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.inference.gpu.cuda_tensor import (
    GPU,
    CudaTensor,
    is_gpu,
    mapped,
    place_of,
    spoil,
    tensors_of,
    unwrapped,
)

__all__ = ["GPU", "PaperCuda", "paper_cuda"]

GIB = 1 << 30
_ATEN = torch.ops.aten
_COPIES = (_ATEN._to_copy.default, _ATEN.copy_.default)
_WAITING = {
    _ATEN._local_scalar_dense, _ATEN.nonzero, _ATEN.masked_select, _ATEN.equal, _ATEN._unique2,
    _ATEN.unique_dim, _ATEN.unique_consecutive, _ATEN.bincount,
}  # fmt: skip
_INDEXING = {_ATEN.index, _ATEN.index_put, _ATEN.index_put_, _ATEN._index_put_impl_}
_EMPTY = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")


@dataclasses.dataclass(slots=True, eq=False)
class _Node:
    """One operation of a graph."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    made: dict[int, Tensor]  # memory that it took, by its place in what comes of it

    def replay(self) -> None:
        result = self.function(*self.args, **self.kwargs)
        if getattr(self.function, "__name__", "").partition(".")[0] in _EMPTY:
            spoil(list(self.made.values()))
            return
        found = tensors_of(result)
        for at, kept in self.made.items():
            kept.copy_(found[at])


class PaperCuda(TorchDispatchMode):
    """The GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []  # what made the host wait, and where
        self.copies: Counter[str] = Counter()  # "to the device", "to the host"; those that nothing waits for
        self._pinned: list[Tensor] = []
        self._sources: list[tuple[Tensor, Tensor]] = []  # being copied to the device, as they were
        self._arriving: list[tuple[Tensor, Tensor]] = []  # at the host
        self._holders: Counter[int] = Counter()  # of each piece of memory, the tensors
        self._capturing: PaperGraph | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch.is_inference_mode_enabled():  # there operations come whole that are made of others
            with self:
                result = func.decompose(*args, **kwargs) if _is_composite(func) else NotImplemented
            if result is not NotImplemented:
                return result
        with (
            torch.inference_mode(False),
            torch.no_grad(),
        ):  # or a view of what was there before has no version
            return self._dispatch(func, args, kwargs)

    def _dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        device = kwargs.get("device")
        ours = device is not None and is_gpu(device)
        pins = kwargs.pop("pin_memory", None)
        if not ours and not any(isinstance(each, CudaTensor) for each in tensors_of((args, kwargs))):
            result = func(*args, **kwargs)
            if pins:
                self._pinned.append(result)
            return result
        if func in _COPIES:
            return self._copy(func, args, kwargs)
        self._check(func, args, kwargs)
        if device is not None:
            kwargs["device"] = "cpu"
        return self.compute(func, *args, **kwargs)

    def compute(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what an operation, or a kernel, makes of tensors of the device, as such tensors."""
        given = tensors_of((args, kwargs))
        wrappers = [each for each in given if isinstance(each, CudaTensor)]
        if any(each.dim() for each in given if not isinstance(each, CudaTensor)):
            raise RuntimeError(f"{function}: expected all tensors to be on the same device")
        args, kwargs = unwrapped(args), unwrapped(kwargs)
        result = function(*args, **kwargs)
        owned = {place_of(each.elem) for each in wrappers}
        found = tensors_of(result)
        if self._capturing is not None:
            made = {at: each for at, each in enumerate(found) if place_of(each) not in owned}
            mutable = not hasattr(function, "_schema") or function._schema.is_mutable
            if made or mutable or not found:
                self._capturing.add(_Node(function, args, kwargs, made), owned)
        own = {id(each.elem): each for each in wrappers}
        return mapped(result, lambda each: self._wrap(each, own))

    def wait(self, what: str) -> None:
        """Do all that the device was told, because the host wants something of it."""
        if self._capturing is not None:
            raise RuntimeError(f"{what}: operation not permitted when stream is capturing")
        if what:
            self.waits.append(f"{what} at {_where()}")
        self.arrive(self._arriving)
        for source, before in self._sources:
            assert torch.equal(source, before), "pinned memory was written before it was copied"
        self._sources = []

    def arrive(self, copies: list[tuple[Tensor, Tensor]]) -> None:
        """Let copies to the host have come to their end."""
        for target, values in [each for each in self._arriving if any(each is one for one in copies)]:
            target.copy_(values)
        self._arriving = [each for each in self._arriving if not any(each is one for one in copies)]

    @property
    def arriving(self) -> list[tuple[Tensor, Tensor]]:
        """Return the copies to the host that are on their way."""
        return list(self._arriving)

    def held(self, place: int) -> bool:
        """Return whether anything still has this memory."""
        return self._holders[place] > 0

    def _wrap(self, elem: Tensor, own: dict[int, CudaTensor]) -> Tensor:
        if id(elem) in own:  # changed in place
            return own[id(elem)]
        wrapper, place = CudaTensor(elem), place_of(elem)
        self._holders[place] += 1
        weakref.finalize(wrapper, self._holders.subtract, (place,))
        return wrapper

    def _check(self, func: Any, args: Any, kwargs: Any) -> None:
        """Put down what waits; raise what CUDA doesn't take."""
        packet = func.overloadpacket
        if packet in _INDEXING:
            indices = [each for each in args[1] if each is not None]
            outside = [each for each in indices if not isinstance(each, CudaTensor)]
            if outside or any(each.dtype in (torch.bool, torch.uint8) for each in indices):
                self.wait(f"{packet} by {'the host' if outside else 'booleans'}")
                args[1][:] = [None if each is None else self._sent(each) for each in args[1]]
        repeats = packet is _ATEN.repeat_interleave and kwargs.get("output_size") is None
        if packet in _WAITING or (repeats and isinstance(args[0], CudaTensor)):
            self.wait(str(packet))

    def _sent(self, each: Tensor) -> Tensor:
        return each if isinstance(each, CudaTensor) else self._wrap(each.clone(), {})

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        copies = func is _ATEN.copy_.default
        source, target = (args[1], args[0]) if copies else (args[0], None)
        later = bool(copies and args[2:] and args[2]) or kwargs.get("non_blocking", False)
        there = isinstance(target, CudaTensor) if copies else is_gpu(kwargs.get("device", source.device))
        kwargs = {**kwargs, "device": "cpu"} if "device" in kwargs else kwargs
        if isinstance(source, CudaTensor) and there:
            return self.compute(func, *args, **kwargs)
        if there:
            self._send(source, later=later)
            args = (*args[:1], self._sent(source), *args[2:]) if copies else (self._sent(source), *args[1:])
            return self.compute(func, *args, **kwargs)
        if not later:
            self.wait("a copy to the host")
            return func(*unwrapped(args), **kwargs)
        assert target is not None, "a copy of its own that nobody waits for is read too early"
        assert self._is_pinned(target), "nothing can be copied to unpinned memory beside the host"
        assert self._capturing is None, "a graph's copy would come again and again"
        self.copies["to the host"] += 1
        self._arriving.append((target, source.elem.to(target.dtype).clone()))
        spoil([target])
        return target

    def _send(self, source: Tensor, *, later: bool) -> None:
        if not (later and self._is_pinned(source)):
            self.wait("a copy to the device from memory that isn't pinned")
            return
        if self._capturing is not None:
            raise RuntimeError("a graph's copy from the host would come again and again")
        self.copies["to the device"] += 1
        self._sources.append((source, source.clone()))

    def _is_pinned(self, tensor: Tensor) -> bool:
        return any(place_of(tensor) == place_of(each) for each in self._pinned)


class PaperGraph:
    """Stands for torch.cuda.CUDAGraph."""

    def __init__(self, cuda: PaperCuda) -> None:
        self._cuda = cuda
        self._nodes: list[_Node] = []
        self._made: set[int] = set()
        self._read: set[int] = set()  # memory that was there before

    def add(self, node: _Node, owned: set[int]) -> None:
        """Take an operation in; `owned`: the memory of its operands."""
        self._read |= owned - self._made
        self._made |= {place_of(each) for each in node.made.values()}
        self._nodes.append(node)

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        self._cuda._capturing = self

    def capture_end(self) -> None:
        self._cuda._capturing = None

    def replay(self) -> None:
        lost = [place for place in self._read if place and not self._cuda.held(place)]
        assert not lost, "a graph reads memory that nobody holds any more"
        for node in self._nodes:
            node.replay()
        spoil(
            [
                each
                for node in self._nodes
                for each in node.made.values()
                if not self._cuda.held(place_of(each))
            ]
        )


class PaperEvent:
    """Stands for torch.cuda.Event."""

    def __init__(self, cuda: PaperCuda) -> None:
        self._cuda = cuda
        self._behind: list[tuple[Tensor, Tensor]] = []

    def record(self) -> None:
        self._behind = self._cuda.arriving

    def synchronize(self) -> None:
        self._cuda.arrive(self._behind)

    def elapsed_time(self, other: PaperEvent) -> float:
        return 1.0


@contextmanager
def paper_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[PaperCuda]:
    """Have tensors on "cuda" meanwhile."""
    cuda = PaperCuda()
    stream = SimpleNamespace(wait_stream=lambda other: None)
    generator = SimpleNamespace(clone_state=lambda: None, graphsafe_set_state=lambda state: None)
    properties = SimpleNamespace(
        major=9, multi_processor_count=132, total_memory=80 * GIB, L2_cache_size=1 << 20, name="Paper"
    )
    for name, value in {
        "_lazy_init": lambda: None,
        "synchronize": lambda device=None: cuda.wait(""),
        "empty_cache": lambda: None,
        "current_stream": lambda device=None: stream,
        "current_device": lambda: 0,
        "stream": lambda stream: nullcontext(),
        "Stream": lambda device=None: stream,
        "Event": lambda enable_timing=False: PaperEvent(cuda),
        "CUDAGraph": lambda: PaperGraph(cuda),
        "default_generators": (generator,),
        "graph_pool_handle": lambda: (0, 1),
        "mem_get_info": lambda device=None: (60 * GIB, 80 * GIB),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: GIB,
        "reset_peak_memory_stats": lambda device=None: None,
        "get_device_properties": lambda device=None: properties,
        "get_device_name": lambda device=None: properties.name,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    # What torch.tensor makes is made on the CPU, as for CUDA, and a module's parameters are made anew there
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with cuda:
            yield cuda
    finally:
        torch._C._set_only_lift_cpu_tensors(False)
        torch.__future__.set_overwrite_module_params_on_conversion(False)


@cache
def _is_composite(func: Any) -> bool:
    key = "CompositeImplicitAutograd"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


def _where() -> str:
    frames = [each for each in traceback.extract_stack() if "/inference/" in each.filename]
    own = [each for each in frames if "/tests/" not in each.filename]
    return f"{own[-1].filename.rpartition('/inference/')[2]}:{own[-1].lineno}" if own else "?"
