"""The engine's own thread: requests in, one frame per step out."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from inference.config import EngineConfig
from inference.core import FrameSink
from inference.engine.adapter_desk import AdapterDesk
from inference.engine.assembly import known_demand, make_stepper, step_limits
from inference.engine.description import describe
from inference.engine.device_assembly import Assembly
from inference.engine.step import Stepper
from inference.errors import ModelUnavailable
from inference.failures import STOPPED_BEFORE
from inference.files.generation_config import unheeded
from inference.gpu.device import begin_device, check_device
from inference.gpu.memory import memory_named
from inference.gpu.runner import Launched
from inference.grammar.masks import MaskPool
from inference.levels.served import Served
from inference.loading.bringing import bring_up
from inference.loading.source import Source, find_source
from inference.machine import release_memory, usable_cores
from inference.planning.plan import Plan, fit_plan, make_plan
from inference.sequences.faults import EngineLost
from inference.shards.cores import cores_of, of_its_own, stay_on
from inference.shards.group import Group, ShardLost
from inference.shards.meeting import agree
from inference.types import AdapterChange, CoreFailure, CoreRequest, Frame, Image, Looked, ModelInfo
from inference.vision.looker import Looker, NotLookedAt, add_seeing
from inference.vision.store import ImageStore

if TYPE_CHECKING:
    from inference.shards.leader import Shards

LOG = logging.getLogger(__name__)
REST_SECONDS = 0.02  # without a request, after which it does what can be done meanwhile

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
        self._lost: str | None = None  # why a shard is
        self._shards: Shards | None = None  # set by `load`, if there are others; as is the next
        self._group: Group | None = None
        self._looker: Looker | None = None  # set by `load`, if the model can be shown images
        self._desk = AdapterDesk(self.ask_again)  # opened by `load`, if adapters may come and go

    def load(self, progress: Callable[[str], None]) -> ModelInfo:
        """Load the model, bring it to its best level and allocate its cache; raise ModelUnavailable."""
        try:
            return self._load(progress)
        except (ModelUnavailable, ShardLost) as error:
            lost = isinstance(error, ShardLost) or (self._group is not None and self._group.lost is not None)
            why = self._shards.why() if self._shards is not None and lost else None
            self._end_shards()
            raise ModelUnavailable(why or str(error)) from error

    def _load(self, progress: Callable[[str], None]) -> ModelInfo:
        config = self._config
        if config.shards > 1:
            from inference.shards.leader import Shards  # and with it what a benchmark's machine may lack

            here = config.shards - config.remote_shards
            threads = max(self._threads // here, 1)
            self._shards = Shards(config, threads, self._lose)
            stay_on(cores_of(0, here))
            self._threads = of_its_own(threads, config)
        torch.set_num_threads(self._threads)
        source = find_source(config, self._threads, progress, device_path=self._device_path)
        self._device = source.device
        demand, machine = source.demand(), source.machine(self._threads)
        group = self._group = None if self._shards is None else self._shards.meet(source.library, progress)
        if group is not None:
            machine = agree(group, machine)
        plan = make_plan(config, demand, machine)
        progress(str(plan))
        if group is not None:
            group.tell(np.array([plan.max_total_tokens]))
        source, plan, served, vocabulary, vision = bring_up(source, plan, progress, group)
        release_memory()
        unused = unheeded(source.checkpoint.path)
        for line in filter(None, (str(served), served.weights, *map(str, source.adapters), unused)):
            progress(line)
        # Its layers may not be what its configuration says
        if (known := known_demand(served, plan.demand)) != plan.demand:
            plan = fit_plan(config, plan, known, plan.machine)
            progress(str(plan))
        plan = self._prepare(served, plan, source, progress)
        if vision is not None and not vision.reason:
            threads = config.threads or usable_cores()
            store = ImageStore(keeps=config.prefix_caching)
            self._looker = Looker(vision, store, plan.max_input_tokens, self._tell_looked, threads=threads)
        info = describe(config, source, served, plan, vocabulary, vision, progress)
        return self._desk.open(info, served.later, config.model)

    def start(self, sink: FrameSink) -> None:
        """Begin to step."""
        assert self._stepper is not None, "load comes first"
        self._sink = sink
        self._desk.start(sink)
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
        self._sink(Frame((CoreFailure(request.id, STOPPED_BEFORE),)))

    def look(self, request_id: str, images: tuple[Image, ...], salt: str) -> None:
        """Have a request's images looked at."""
        if self._looker is not None and not self._stopping:
            self._looker.look(request_id, images, salt)
            return
        why = "The engine has stopped" if self._stopping else "The model takes no images"
        self._tell_looked(Looked(request_id, message=why, invalid=not self._stopping))

    def change(self, change: AdapterChange) -> None:
        """Have an adapter loaded or unloaded."""
        self._desk.change(change)

    def heard(self, edition: int) -> None:
        """Know that nobody asks any more for an adapter that isn't in an edition."""
        self._desk.heard(edition)

    def abort(self, request_id: str) -> None:
        """Forget a request by the next step."""
        with self._wake:
            self._inbox = [request for request in self._inbox if request.id != request_id]
            self._aborts.add(request_id)
            self._wake.notify()
        if self._looker is not None:  # only now: whoever misses the images finds the abort
            self._looker.abort(request_id)

    def pace(self, full: Callable[[str], bool]) -> None:
        """Let nobody in who is told of its prompt while `full` says so of its id."""
        assert self._stepper is not None, "load comes first"
        self._stepper.pace.full = full

    def ask_again(self) -> None:
        """Look who may be let in now."""
        with self._wake:
            self._wake.notify()

    def stop(self) -> None:
        """End the loop, fail what is left and free the model."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        if self._looker is not None:
            self._looker.close()
        if self._masks is not None:
            self._masks.close()
        self._end_shards()
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
            begin_device(self._device)
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
                    check_device(self._device)
                self._stepping = False
                self._desk.release(stepper.uses)
        except EngineLost as error:
            LOG.critical("The engine can't go on: %s", error)
            message = f"The engine died: {error}"
        except Exception as error:  # the loop's own error: every request must hear of it
            LOG.exception("The engine's loop died")
            message = f"The engine died: {type(error).__name__}: {error}"
        finally:
            with self._wake:
                self._stopping = True
                left = tuple(CoreFailure(request.id, message) for request in self._inbox)
                self._inbox = []
            self._desk.close()
            sink(Frame((*stepper.fail_all(message).outputs, *left)))

    def _take_messages(self, stepper: AnyStepper, sink: FrameSink) -> bool:
        """Hand requests and aborts to the stepper, waiting while it has nothing to do; false to stop."""
        self._check_shards()
        if stepper.idle:
            stepper.check_idle()
            self._work_while_idle(stepper)
        elif not (self._told or stepper.stuck):
            return True
        with self._wake:
            while (stepper.idle or stepper.stuck) and not self._told:
                self._wake.wait()
            self._check_shards()
            requests, self._inbox = self._inbox, []
            aborts, self._aborts = self._aborts, set()
            told = self._desk.told  # by who asked for these, among others
        for request_id in aborts:
            stepper.abort(request_id)
        for request in requests:
            self._add(stepper, request, sink)
        self._desk.tend(told, stepper.uses)
        return not self._stopping

    def _work_while_idle(self, stepper: AnyStepper) -> None:
        """Do what can be done while there is no request, once there has been none for a moment.

        What is begun takes milliseconds, for which whoever asks again at once would wait.
        """
        with self._wake:
            if not self._told:
                self._wake.wait(REST_SECONDS)
        while not self._told and stepper.work_while_idle():
            pass

    @property
    def _told(self) -> bool:
        return bool(self._inbox or self._aborts) or self._ends or self._desk.waits

    def _add(self, stepper: AnyStepper, request: CoreRequest, sink: FrameSink) -> None:
        try:
            self._desk.check(request.adapter)
            add_seeing(stepper.add, request, self._looker)
        except Exception as error:  # whatever is wrong with one request, the others go on
            with self._wake:
                if request.id in self._aborts:  # it was taken before, and its images were let go
                    return
            LOG.exception("Request %s could not be queued", request.id)
            why = f"The request could not be queued: {error}"
            sink(Frame((CoreFailure(request.id, why, isinstance(error, NotLookedAt)),)))

    def _tell_looked(self, looked: Looked) -> None:
        if self._sink is not None:  # else nobody asked
            self._sink(Frame((), looked=(looked,)))

    @property
    def _ends(self) -> bool:
        return self._stopping or self._lost is not None

    def _lose(self, why: str) -> None:
        """Have the loop end: nothing can be computed any more."""
        with self._wake:
            self._lost = why
            self._wake.notify()

    def _check_shards(self) -> None:
        if self._group is not None and self._group.lost is not None:
            raise self._group.lost
        if self._lost is not None and not self._stopping:
            raise ShardLost(self._lost)

    def _end_shards(self) -> None:
        if self._shards is not None:
            self._shards.close()

    def _without_aborted(self, frame: Frame) -> Frame:
        """Drop what a step made for requests that were aborted meanwhile."""
        if not self._aborts:  # one that comes just now came too late
            return frame
        with self._wake:
            aborted = self._aborts.copy()
        return Frame(tuple(output for output in frame.outputs if output.id not in aborted), frame.stats)

    def _prepare(self, served: Served, plan: Plan, source: Source, progress: Callable[[str], None]) -> Plan:
        """Make what steps; return the plan, on a GPU with a cache for which memory was measured."""
        if served.level.native and not served.torch_heavy:
            # What torch computes between native calls is little: a second set of threads would only
            # take the cores from ours.
            self._threads = 1
        config, eos, library = self._config, source.eos, source.library
        self._masks = MaskPool(served.vocabulary, eos, changed=self._wake)
        if served.make_model is None:
            self._stepper = make_stepper(
                served, plan, eos, self._masks, library, config, progress, self._group
            )
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
        plan = assembly.fit(plan, source.device, progress)
        with memory_named("the cache was made and graphs were captured", source.device):
            self._stepper = assembly.make_stepper(plan, self._masks, progress)
        return plan
