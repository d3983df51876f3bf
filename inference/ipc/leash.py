"""What keeps a process from outliving the one that started it, even while it is stopped or hangs."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


class Leash:
    """Ends this process when its parent has died: in order if it can, and without its help if it can't.

    The kernel then sends SIGCONT, by which even a stopped process goes on. Its handler is libc's `alarm`: no
    Python has to run for it, so that a thread which holds the interpreter for ever doesn't matter. It is
    given the signal's number, which is how many seconds are left for an end in order. SIGCONT may also come
    from anybody else: `hold` then calls the alarm off, so that Python must run within that time.

    See prctl(2), PR_SET_PDEATHSIG. Elsewhere than on Linux nothing is done, and `hold` tells.
    """

    SECONDS = int(getattr(signal, "SIGCONT", 0))  # 18 on Linux

    def __init__(self, parent: int) -> None:
        """`parent` is the id of its process. Called in the main thread; `hold` is to be called regularly."""
        self._parent = parent
        self._free = False  # the parent has died
        if sys.platform == "linux":
            self._fasten()

    def hold(self) -> bool:
        """Go on if the parent lives; return whether it does."""
        if self._free:
            return False
        if sys.platform == "linux":
            signal.alarm(0)  # before the look: whoever dies after it has the alarm set again
        self._free = os.getppid() != self._parent
        if sys.platform == "linux" and self._free:
            signal.alarm(self.SECONDS)
        return not self._free

    def _fasten(self) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # as whoever started us may have it ignored
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM, signal.SIGCONT})
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        libc.signal.restype = ctypes.c_void_p
        libc.signal(signal.SIGCONT, ctypes.cast(libc.alarm, ctypes.c_void_p))
        _at_death_of_parent(signal.SIGCONT)


def die_with_parent() -> None:
    """Have this process killed when its parent dies, until it has a leash and something to put in order."""
    if sys.platform == "linux":
        _at_death_of_parent(signal.SIGKILL)


def _at_death_of_parent(number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
