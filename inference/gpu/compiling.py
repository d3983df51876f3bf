"""Kernels compiled many at once, before the steps that launch them wait for one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable

from inference.gpu.ops import Ops

LOG = logging.getLogger(__name__)


def compile_together(ops: Ops, launches: Callable[[], None]) -> None:
    """Have all kernels compiled that are launched, and none of them run; what is computed is no matter.

    Operations that compile nothing are left alone. What goes wrong is left to the launch that is meant.
    """
    if not ops.captures:
        return
    from inference.kernels.gpu.launching import compiling

    try:
        with compiling():
            launches()
    except Exception:  # a model's own code may fail in any way on numbers that nobody has computed
        LOG.debug("Kernels weren't compiled together", exc_info=True)
