"""The engine's own thread: requests in, one frame per step out."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from inference.blocks import PAGE, BlockPool
from inference.checkpoint import find_checkpoint, read_weights
from inference.config import EngineConfig
from inference.core import FrameSink
from inference.level import Level, Served, bring_up
from inference.masks import MaskPool
from inference.model import (
    choose_device,
    choose_dtype,
    describe_demand,
    eos_token_ids,
    load_model,
    read_config,
    vocabulary_size,
)
from inference.plan import MIB, Machine, Plan, free_memory, make_plan
from inference.sampler import TorchSampler
from inference.scheduler import Limits, Scheduler
from inference.step import Stepper
from inference.types import CoreFailure, CoreRequest, Frame, ModelInfo

LOG = logging.getLogger(__name__)

_LOGIT_BYTES = 128 * MIB  # of one step's prompt log-probabilities


class TorchCore:
    """A `Core` that runs transformers' models with torch, on CPU or one GPU."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._stepper: Stepper[Tensor] | None = None  # set by `load`
        self._masks: MaskPool | None = None  # set by `load`
        self._sink: FrameSink | None = None  # set by `start`
        self._thread: threading.Thread | None = None  # set by `start`
        self._wake = threading.Condition()  # guards the three below; masks notify it too
        self._inbox: list[CoreRequest] = []
        self._aborts: set[str] = set()
        self._stopping = False

    def load(self, progress: Callable[[str], None]) -> ModelInfo:
        """Load the model, bring it to its best level and allocate its cache; raise ModelUnavailable."""
        self._set_threads()
        checkpoint = find_checkpoint(self._config.model, progress)
        described = read_config(checkpoint, self._config.model)
        device = choose_device(self._config.model)
        dtype = choose_dtype(self._config.model, described, device)
        demand = describe_demand(described, read_weights(checkpoint.path), dtype)
        machine = _machine(device)
        plan = make_plan(self._config, demand, machine)
        progress(str(plan))
        model = load_model(checkpoint, self._config.model, described, dtype, device, progress)
        served = bring_up(model, merge=self._config.merge_linears, max_total_tokens=plan.max_total_tokens)
        progress(f"Level {served.level}" + (f": {served.reason}" if served.reason else ""))
        if served.kv_bytes not in (0, plan.kv_bytes):  # its layers aren't what its configuration says
            plan = make_plan(self._config, replace(demand, kv_bytes=served.kv_bytes), machine)
            progress(str(plan))
        eos = eos_token_ids(model, checkpoint)
        self._masks = MaskPool(served.vocabulary, eos, changed=self._wake)
        self._stepper = _make_stepper(served, plan, eos, self._masks)
        return ModelInfo(
            id=self._config.model.name,
            sha=checkpoint.sha,
            pipeline_tag=checkpoint.pipeline_tag,
            dtype=str(dtype),
            device_type=device.type,
            max_input_tokens=plan.max_input_tokens,
            max_total_tokens=plan.max_total_tokens,
            max_batch_prefill_tokens=plan.step_tokens,
            max_batch_total_tokens=plan.kv_tokens,
            level=served.level.value,
            eos_token_ids=eos,
            vocabulary_size=vocabulary_size(model),
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

    @property
    def alive(self) -> bool:
        """Return whether the loop runs."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self, stepper: Stepper[Tensor], sink: FrameSink) -> None:
        message = "The engine was stopped"
        try:
            self._set_threads()  # OpenMP keeps the number per calling thread
            while self._take_messages(stepper, sink):
                if stepper.idle:  # nothing but aborts came
                    continue
                frame = self._without_aborted(stepper.step())
                if frame.outputs or frame.stats:  # neither where all wait for their masks
                    sink(frame)
        except Exception as error:  # the loop's own error: every request must hear of it
            LOG.exception("The engine's loop died")
            message = f"The engine died: {type(error).__name__}: {error}"
        finally:
            with self._wake:
                self._stopping = True
                left = tuple(CoreFailure(request.id, message) for request in self._inbox)
                self._inbox = []
            sink(Frame((*stepper.fail_all(message).outputs, *left)))

    def _take_messages(self, stepper: Stepper[Tensor], sink: FrameSink) -> bool:
        """Hand requests and aborts to the stepper, waiting while it has nothing to do; false to stop."""
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

    def _without_aborted(self, frame: Frame) -> Frame:
        """Drop what a step made for requests that were aborted meanwhile."""
        with self._wake:
            aborted = self._aborts.copy()
        if not aborted:
            return frame
        return Frame(tuple(output for output in frame.outputs if output.id not in aborted), frame.stats)

    def _set_threads(self) -> None:
        if self._config.threads is not None:
            torch.set_num_threads(self._config.threads)


def _add(stepper: Stepper[Tensor], request: CoreRequest, sink: FrameSink) -> None:
    try:
        stepper.add(request)
    except Exception as error:  # whatever is wrong with one request, the others go on
        LOG.exception("Request %s could not be queued", request.id)
        sink(Frame((CoreFailure(request.id, f"The request could not be queued: {error}"),)))


def _make_stepper(served: Served, plan: Plan, eos: tuple[int, ...], masks: MaskPool) -> Stepper[Tensor]:
    blocks = plan.kv_tokens // PAGE
    limits = Limits(
        tokens=plan.step_tokens,
        sequences=plan.sequences,
        logit_rows=max(_LOGIT_BYTES // (served.vocabulary * 4), 1),
        chunked=served.level in (Level.PAGED, Level.PAGED_MERGED),
    )
    scheduler = Scheduler(BlockPool(blocks), limits)
    return Stepper(scheduler, served.make_runner(blocks), TorchSampler(masks.endings), eos, masks)


def _machine(device: torch.device) -> Machine:
    free = free_memory() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    return Machine(device_type=device.type, free_bytes=free)
