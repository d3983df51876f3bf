"""The engine's own thread: requests in, one frame per step out."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from inference.adapters import find_adapters, held_bytes
from inference.assembly import make_stepper, step_limits
from inference.checkpoint import find_checkpoint, read_weights
from inference.config import EngineConfig
from inference.core import FrameSink
from inference.eos import eos_token_ids
from inference.errors import ModelUnavailable
from inference.gpu.assembly import Assembly, choose_ops
from inference.gpu.memory import memory_named
from inference.gpu.runner import Launched
from inference.kernels.native import Library, open_library
from inference.level import Options, bring_up
from inference.lora import load_adapters
from inference.machine import Machine, free_memory, release_memory, usable_cores
from inference.masks import MaskPool
from inference.model import (
    choose_device,
    choose_dtype,
    describe_demand,
    held_weights,
    load_model,
    read_config,
    vocabulary_size,
)
from inference.plan import Plan, fit_plan, make_plan
from inference.precision import kv_dtype, linears_dtype, product_speed, rounds_inputs, screen_bytes
from inference.served import Served
from inference.step import Stepper
from inference.types import CoreFailure, CoreRequest, Frame, ModelInfo

LOG = logging.getLogger(__name__)

AnyStepper = Stepper[Tensor] | Stepper[Launched]


class TorchCore:
    """A `Core` that runs transformers' models with torch, on CPU or one GPU."""

    def __init__(self, config: EngineConfig, *, device_path: bool = False) -> None:
        """`device_path`: the path that GPUs take, also on the CPU, where it is only tried."""
        self._config = config
        self._device_path = device_path
        self._threads = config.threads or usable_cores()  # of torch; set anew by `load`
        self._device = torch.device("cpu")  # set by `load`
        self._stepper: AnyStepper | None = None  # set by `load`
        self._masks: MaskPool | None = None  # set by `load`
        self._sink: FrameSink | None = None  # set by `start`
        self._thread: threading.Thread | None = None  # set by `start`
        self._steps = 0  # begun so far
        self._stepping = False  # one of them is being computed
        self._wake = threading.Condition()  # guards the three below; masks notify it too
        self._inbox: list[CoreRequest] = []
        self._aborts: set[str] = set()
        self._stopping = False

    def load(self, progress: Callable[[str], None]) -> ModelInfo:
        """Load the model, bring it to its best level and allocate its cache; raise ModelUnavailable."""
        torch.set_num_threads(self._threads)
        config = self._config
        checkpoint = find_checkpoint(config.model, progress)
        adapters = find_adapters(config.model, progress)
        described = read_config(checkpoint, config.model)
        device = self._device = choose_device(config.model, progress)
        library, without = self._open_library(device)
        dtype = choose_dtype(config.model, described, device)
        weights = read_weights(checkpoint.path, pickled=config.model.trust_remote_code)
        eos = eos_token_ids(checkpoint.path)
        cached = kv_dtype(config, library, without, dtype)
        linears = linears_dtype(config, weights, dtype, library)
        held = held_weights(described, weights, device)
        demand = describe_demand(described, held, dtype, linears, cached)
        screen = screen_bytes(config, library, described)
        demand = replace(
            demand,
            weights_bytes=demand.weights_bytes
            + screen
            + held_bytes(adapters, None if device.type == "cpu" else dtype.itemsize),
            product_speed=product_speed(config, library),
        )
        machine = self._machine(device, library)
        plan = make_plan(config, demand, machine)
        progress(str(plan))
        with memory_named("the model was loaded", device):
            model = load_model(checkpoint, config.model, described, weights, device, progress)
            vocabulary = vocabulary_size(model)
            low_ranks = load_adapters(adapters, model) if adapters else None
            options = replace(_options(config, library, dtype, plan), adapters=low_ranks)
            ops = choose_ops(config, device) if self._takes_device_path(device) else None
            served = bring_up(model, replace(options, without=without, kv_dtype=cached, ops=ops))
        release_memory()
        for line in filter(None, (str(served), served.weights, *map(str, adapters))):
            progress(line)
        if served.kv_bytes not in (0, plan.demand.kv_bytes):  # its layers aren't what its configuration says
            plan = fit_plan(config, plan, replace(demand, kv_bytes=served.kv_bytes), machine)
            progress(str(plan))
        plan = self._prepare(served, plan, eos, library, device, progress)
        return ModelInfo(
            id=config.model.name,
            sha=checkpoint.sha,
            pipeline_tag=checkpoint.pipeline_tag,
            dtype=served.weights_dtype or str(dtype),
            device_type=device.type,
            max_input_tokens=plan.max_input_tokens,
            max_total_tokens=plan.max_total_tokens,
            max_batch_prefill_tokens=plan.step_tokens,
            max_batch_total_tokens=plan.kv_tokens,
            level=served.name,
            eos_token_ids=eos,
            vocabulary_size=vocabulary,
            adapters=tuple(each.name for each in adapters),
            deterministic=served.exact and (served.make_model is None or config.deterministic),
            step_seconds=plan.step_seconds(
                plan.step_tokens if served.level.chunked else plan.max_total_tokens
            ),
        )

    def start(self, sink: FrameSink) -> None:
        """Begin to step."""
        assert self._stepper is not None, "load comes first"
        self._sink = sink
        self._thread = threading.Thread(
            target=self._run, args=(self._stepper, sink), name="engine", daemon=True
        )
        self._thread.start()

    def submit(self, request: CoreRequest) -> None:
        """Queue a request."""
        with self._wake:
            if not self._stopping:
                self._inbox.append(request)
                self._wake.notify()
                return
        assert self._sink is not None, "start comes first"
        self._sink(Frame((CoreFailure(request.id, "The engine has stopped"),)))

    def abort(self, request_id: str) -> None:
        """Forget a request by the next step."""
        with self._wake:
            self._inbox = [request for request in self._inbox if request.id != request_id]
            self._aborts.add(request_id)
            self._wake.notify()

    def stop(self) -> None:
        """End the loop, fail what is left and free the model."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        if self._masks is not None:
            self._masks.close()
        self._stepper = None
        gc.collect()  # the model's modules refer to each other

    def join(self) -> None:
        """Wait until the loop has ended; returns at once before `start`."""
        if self._thread is not None:
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Return whether the loop runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def step(self) -> int | None:
        """Return the number of the step that is being computed, None between steps."""
        return self._steps if self._stepping else None

    def _run(self, stepper: AnyStepper, sink: FrameSink) -> None:
        message = "The engine was stopped"
        try:
            torch.set_num_threads(self._threads)  # OpenMP keeps the number per calling thread
            self._begin_device()
            while self._take_messages(stepper, sink):
                if stepper.idle:  # nothing but aborts came
                    sink(stepper.at_rest())
                    continue
                self._steps += 1
                self._stepping = True
                frame = self._without_aborted(stepper.step())
                if frame.outputs or frame.stats:  # neither where all wait for their masks
                    sink(frame)
                if frame.stats is not None and frame.stats.failed:
                    self._check_device()
                self._stepping = False
        except Exception as error:  # the loop's own error: every request must hear of it
            LOG.exception("The engine's loop died")
            message = f"The engine died: {type(error).__name__}: {error}"
        finally:
            with self._wake:
                self._stopping = True
                left = tuple(CoreFailure(request.id, message) for request in self._inbox)
                self._inbox = []
            sink(Frame((*stepper.fail_all(message).outputs, *left)))

    def _take_messages(self, stepper: AnyStepper, sink: FrameSink) -> bool:
        """Hand requests and aborts to the stepper, waiting while it has nothing to do; false to stop."""
        if stepper.idle:
            stepper.check_idle()
            while not (self._inbox or self._aborts or self._stopping) and stepper.work_while_idle():
                pass
        elif not (self._inbox or self._aborts or self._stopping or stepper.stuck):
            return True
        with self._wake:
            while (stepper.idle or stepper.stuck) and not (self._inbox or self._aborts or self._stopping):
                self._wake.wait()
            requests, self._inbox = self._inbox, []
            aborts, self._aborts = self._aborts, set()
        for request_id in aborts:
            stepper.abort(request_id)
        for request in requests:
            _add(stepper, request, sink)
        return not self._stopping

    def _begin_device(self) -> None:
        """Have cuBLAS begin in this thread before a request comes: it keeps a handle and memory for each."""
        if self._device.type == "cuda":
            with torch.inference_mode():
                some = torch.ones(16, 16, device=self._device)
                torch.mm(some, some)
            torch.cuda.synchronize(self._device)

    def _check_device(self) -> None:
        """Raise what has broken the GPU for this process: no step would succeed any more.

        After an illegal access or a fault of the hardware every call to CUDA fails until the process ends.
        """
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _without_aborted(self, frame: Frame) -> Frame:
        """Drop what a step made for requests that were aborted meanwhile."""
        if not self._aborts:  # one that comes just now came too late
            return frame
        with self._wake:
            aborted = self._aborts.copy()
        return Frame(tuple(output for output in frame.outputs if output.id not in aborted), frame.stats)

    def _prepare(
        self,
        served: Served,
        plan: Plan,
        eos: tuple[int, ...],
        library: Library | None,
        device: torch.device,
        progress: Callable[[str], None],
    ) -> Plan:
        """Make what steps; return the plan, on a GPU with a cache for which memory was measured."""
        if served.level.native and not served.torch_heavy:
            # What torch computes between native calls is little: a second set of threads would only
            # take the cores from ours.
            self._threads = 1
        config = self._config
        self._masks = MaskPool(served.vocabulary, eos, changed=self._wake)
        if served.make_model is None:
            self._stepper = make_stepper(served, plan, eos, self._masks, library, config, progress)
            return plan
        if config.speculate:
            progress(
                "No tokens are guessed ahead: on a GPU the next step begins before a step's tokens are known"
            )
        assembly = Assembly(
            config=config,
            make_model=served.make_model,
            vocabulary=served.vocabulary,
            limits=step_limits(served, plan),
            eos=eos,
        )
        plan = assembly.fit(plan, device, progress)
        with memory_named("the cache was made and graphs were captured", device):
            self._stepper = assembly.make_stepper(plan, self._masks, progress)
        return plan

    def _open_library(self, device: torch.device) -> tuple[Library | None, str]:
        """Return the C extension, or why it isn't used; raise ModelUnavailable if that can't be."""
        config = self._config
        library, without = None, ""
        if device.type != "cpu":
            without = "native kernels are for CPUs"
        elif self._takes_device_path(device):
            without = "a GPU's path is tried"
        elif not config.native_kernels:
            without = "native kernels are switched off"
        else:
            library = open_library(self._threads, config.isa)
            without = "" if library else "native kernels can't be used: see the log for why, and what to do"
        if config.model.quantize and library is None:
            raise ModelUnavailable(
                f"--quantize {config.model.quantize} needs the native kernels, but {without}"
            )
        return library, without

    def _takes_device_path(self, device: torch.device) -> bool:
        return self._device_path or device.type != "cpu"

    def _machine(self, device: torch.device, library: Library | None) -> Machine:
        if device.type == "cpu":
            free = free_memory()
        else:
            left, total = torch.cuda.mem_get_info(device)
            free = max(left - int(total * (1 - self._config.cuda_memory_fraction)), 0)
        isa = "torch" if library is None else library.isa
        threads = self._threads if library is None else library.threads
        return Machine(device_type=device.type, free_bytes=free, threads=threads, isa=isa)


def _add(stepper: Stepper[Tensor], request: CoreRequest, sink: FrameSink) -> None:
    try:
        stepper.add(request)
    except Exception as error:  # whatever is wrong with one request, the others go on
        LOG.exception("Request %s could not be queued", request.id)
        sink(Frame((CoreFailure(request.id, f"The request could not be queued: {error}"),)))


def _options(config: EngineConfig, library: Library | None, dtype: torch.dtype, plan: Plan) -> Options:
    return Options(
        library=library,
        fuse=config.fuse_layers,
        merge=config.merge_linears,
        narrow=config.narrow_weights,
        compress=config.compress_weights,
        screen=config.screen_head,
        trim=config.trim_last_layer,
        quantize=config.model.quantize == "int8",
        round_inputs=rounds_inputs(config, library),
        dtype=dtype,
        kv_dtype_asked=config.kv_cache_dtype != "auto",
        max_total_tokens=plan.max_total_tokens,
        filter_on_device=config.filter_on_device,
    )
