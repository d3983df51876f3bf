"""The engine's process: what it does from its first word to its last."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from inference import last_resorts
from inference.config import EngineConfig
from inference.core import LocalCore
from inference.environment import SWITCH_SECONDS
from inference.errors import ModelUnavailable
from inference.ipc.control import Control, send_logs
from inference.ipc.leash import Leash
from inference.ipc.messages import FROM_PARENT, Configuration, Kept, Progress, Pulse, Ready, Unavailable
from inference.ipc.watchdog import LAST_WORDS, PULSE_SECONDS
from inference.process.server import EngineServer
from inference.signals import outlive_endings
from inference.types import Frame

LOG = logging.getLogger(__name__)

DIED, UNAVAILABLE = 1, 3  # exit codes
_GC_THRESHOLD_OF_LOADING = (100_000, 50, 50)  # nearly all that comes then stays

MakeCore = Callable[[EngineConfig], LocalCore]


def main(arguments: list[str], make_core: MakeCore) -> NoReturn:
    """Run an engine.

    The arguments are two inherited descriptors: the line to the parent, and the listening socket.
    """
    if len(arguments) != 2:
        raise SystemExit("the engine's process is started by the server: use `parley serve`")
    sys.setswitchinterval(SWITCH_SECONDS)
    control, listening = (socket.socket(fileno=int(each)) for each in arguments)
    for each in (control, listening):  # what the engine may start itself must not hold them open
        each.set_inheritable(False)
    line = Control(control)
    words = line.receive(FROM_PARENT)
    configuration = next(words, None)
    if not isinstance(configuration, Configuration):
        raise SystemExit("the line to the server brought no configuration")
    engine = Engine(configuration, line, listening, make_core)
    engine.start()
    for _ in words:
        engine.stop()
    engine.orphan()


class Engine:
    """A core, its socket, and the line to the parent."""

    def __init__(
        self, configuration: Configuration, line: Control, listening: socket.socket, make_core: MakeCore
    ) -> None:
        self._configuration = configuration
        self._line = line
        self._server = EngineServer(listening, died=self._die)
        self._make_core = make_core
        self._leash = Leash(configuration.parent)
        self._core: LocalCore | None = None  # set once it runs
        self._leaving = threading.Lock()  # taken by whoever ends the process, never given back

    def start(self) -> None:
        """Take signals and processes in, and load the model on a thread of its own."""
        faulthandler.enable()
        if LAST_WORDS is not None:  # for where every thread stands, even if one never lets Python go on
            faulthandler.register(LAST_WORDS)
        send_logs(self._line, self._configuration.log_levels)
        last_resorts.install()
        self._mind_the_parent()
        self._server.start()
        # The main thread waits for the parent's words meanwhile
        threading.Thread(target=self._run, name="engine-life", daemon=True).start()
        threading.Thread(target=self._beat, name="engine-pulse", daemon=True).start()

    def stop(self) -> NoReturn:
        """End as the parent asks, after telling whoever is attached."""
        self._begin_to_leave()
        if self._core is not None:
            self._core.stop()
            self._server.close()
        self._leave(0)

    def orphan(self) -> NoReturn:
        """End at once: the parent has died, and cleans up nothing."""
        address = Path(self._configuration.address)
        try:
            address.unlink(missing_ok=True)
            address.parent.rmdir()
        finally:
            os._exit(DIED)

    def _run(self) -> None:
        try:
            with _seldom_collecting():
                core = self._make_core(self._configuration.engine)
                model = core.load(self._progress)
            core.start(self._sink)
        except ModelUnavailable as error:
            self._refuse(str(error))
        except BaseException as error:  # torch and drivers raise anything
            LOG.exception("The model could not be loaded")
            self._refuse(f"The model can't be loaded: {type(error).__name__}: {error}")
        self._core = core
        # Before anybody can see the model: whoever is told of its commit finds that one after a restart, too
        self._line.send(Ready(model))
        self._server.ready(core, model)
        core.join()
        self._begin_to_leave()
        LOG.critical("The engine's loop has ended")
        self._leave(DIED)

    def _sink(self, frame: Frame) -> None:
        if frame.edition is not None:  # first of all: whoever knows of it finds it after a restart, too
            self._line.send(Kept(dict(frame.edition.kept)))
        self._server.sink(frame)

    def _beat(self) -> None:
        """Give signs of life for as long as there is somebody for whom to live."""
        while self._leash.hold():
            step = None if self._core is None else self._core.step
            self._line.send(Pulse(step, self._server.served))
            time.sleep(PULSE_SECONDS)
        self.orphan()

    def _progress(self, line: str) -> None:
        self._server.progress(line)
        self._line.send(Progress(line))

    def _die(self) -> NoReturn:
        self._begin_to_leave()
        self._leave(DIED)

    def _refuse(self, message: str) -> NoReturn:
        self._begin_to_leave()
        self._server.unavailable(message)
        self._line.send(Unavailable(message))
        self._leave(UNAVAILABLE)

    def _begin_to_leave(self) -> None:
        """Return to the first who calls, and to nobody else."""
        self._leaving.acquire()

    def _leave(self, code: int) -> NoReturn:
        """End without the interpreter's own end, in which threads of native code have crashed before."""
        logging.shutdown()
        os._exit(code)

    def _mind_the_parent(self) -> None:
        """Outlive signals that are the parent's to act on, but not the parent.

        Ctrl-C reaches every process of a terminal, and a service manager's SIGTERM every process of a
        service: requests that run are to be ended by the server then, in good order.
        """
        outlive_endings()
        if not self._leash.hold():  # it died before the kernel knew that we care
            self.orphan()


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Have the garbage collector look seldom while modules and a model come, and never at them again.

    An eighth of the time of torch's and transformers' import was its looks at what stays. Later, to look
    through all of it took 200 ms in the middle of a step.
    """
    usual = gc.get_threshold()
    gc.set_threshold(*_GC_THRESHOLD_OF_LOADING)
    yield
    gc.set_threshold(*usual)
    gc.collect()
    gc.freeze()
