"""Whether a process still gets on, judged by its signs of life."""

from __future__ import annotations

import math
import signal

LOOK_SECONDS = 1.0  # how often who watches looks
PULSE_SECONDS = 0.5  # how often an engine's process gives a sign of life
SILENT_SECONDS = 30.0  # without one from a process that has loaded its model
UNREAD_SECONDS = 120.0  # for which an API process takes nothing of what waits; `worker_timeout` judges sooner
LOADING_SILENT_SECONDS = 600.0  # before: files are read and kernels compiled, which may hold everything up
STEP_SECONDS = 60.0  # a step may take that long on any machine
TIMES_THE_LONGEST = 20.0  # or so many times what the longest is estimated to take
LAST_WORDS = getattr(signal, "SIGUSR1", None)  # has an engine write where all of its threads stand


class Patience:
    """Seconds for which something has lasted, counted while the counting process itself ran.

    A machine that was suspended, or a group of processes that was stopped and goes on, finds a time gone by
    in which nobody could give a sign: no more than two looks' worth of it counts.
    """

    def __init__(self, now: float, look_seconds: float = LOOK_SECONDS) -> None:
        """`now` is time.monotonic() seconds, here and below."""
        self._looked = now
        self._most = 2 * look_seconds
        self.seconds = 0.0

    def begin(self) -> None:
        """Count from nothing again."""
        self.seconds = 0.0

    def look(self, now: float) -> float:
        """Return for how many seconds it has lasted."""
        self.seconds += min(max(now - self._looked, 0.0), self._most)
        self._looked = now
        return self.seconds


class Watchdog:
    """Says when an engine hangs: in a step that doesn't end, or altogether.

    `limit` is the longest that a step may take, in seconds; 0: nothing is ever said.
    """

    def __init__(self, now: float, limit: float) -> None:
        self.limit = limit
        self.ready = False  # set once the model is loaded
        self._step: int | None = None
        self._silence = Patience(now, self.look_seconds)
        self._stuck = Patience(now, self.look_seconds)

    @property
    def look_seconds(self) -> float:
        """Return how often to look."""
        return min(LOOK_SECONDS, self.limit / 4) if self.limit else LOOK_SECONDS

    def hear(self, step: int | None) -> None:
        """Take a sign of life; `step` is the number of the one that is computed, None between steps."""
        self._silence.begin()
        if step is None or step != self._step:
            self._stuck.begin()
        self._step = step

    def look(self, now: float) -> str | None:
        """Return why the engine hangs, None if it doesn't; all that it has said was heard before."""
        silent, stuck = self._silence.look(now), self._stuck.look(now)
        if not self.limit:
            return None
        if silent > self._longest_silence:
            return f"it has given no sign of life for {silent:.0f} s"
        if self._step is not None and stuck > self.limit:
            return f"a step takes longer than {self.limit:g} s, which `step_timeout` sets"
        return None

    @property
    def _longest_silence(self) -> float:
        if not self.ready:
            return max(self.limit, LOADING_SILENT_SECONDS)
        return max(min(self.limit, SILENT_SECONDS), 5 * PULSE_SECONDS)


def step_limit(setting: float | None, longest_step_seconds: float) -> float:
    """Return how many seconds a step may take: as set, or by what the longest one is estimated to take."""
    if setting is not None:
        return setting
    return float(math.ceil(max(STEP_SECONDS, TIMES_THE_LONGEST * longest_step_seconds)))
