"""What must be settled before any test module is imported."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.interpreted import find_builtins_once, replace_once_a_launch, settle_products, spare_what_is_known

if importlib.util.find_spec("connexion") is not None:  # a machine with a GPU may have the engine alone
    from tests.once import read_documents_once

    read_documents_once()

# How long an example takes says more of what else the machine does than of what is tested
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# .ci/run asks for it: what is judged there is the change, so that the next run of it draws the same
# examples. By hand others are drawn each time, and twice as many: all of it has to end within 40 minutes.
settings.register_profile("ci", settings.get_profile("any machine"), derandomize=True, max_examples=50)

# While modules come, which all stay, a fifth of the time went to the collector's looks at them; of what tests
# make, reference counts free nearly all
gc.set_threshold(100_000, 50, 50)
_GC_THRESHOLD_OF_TESTS = (5_000, 20, 20)

_GPU = Path("/dev/nvidiactl").exists()

# Triton's kernels run in its interpreter where no GPU is. That is decided as triton is imported, which
# transformers does by itself; nothing else in the tests uses triton, so nothing else changes.
if not _GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")


# Under nohup, and where a runner does as that does, SIGHUP is ignored, and what tests start would inherit
# that; a handler isn't inherited
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_configure(config: pytest.Config) -> None:
    """Have xdist hand out modules in the order that is made here, not those with most tests first."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In several processes, begin with the modules that have slow tests: else one is left at the end."""
    if not hasattr(config, "workerinput"):
        return
    tests = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: (item.path not in slow, -tests[item.path]))  # in a module as before


def pytest_collection_finish() -> None:
    """Spare the collector what is there for good: twelve thousand tests and what they import."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLD_OF_TESTS)


def pytest_unconfigure() -> None:
    """Let it look at all again: libraries count at the end what they haven't got back."""
    gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs an accelerator where there is none; settle how Triton's interpreter works."""
    settle_products()
    find_builtins_once()
    if not _GPU:  # where Triton compiles, its own tensors are what it takes them for
        replace_once_a_launch()
        spare_what_is_known()
    if item.get_closest_marker("gpu") is not None and not _GPU:
        pytest.skip("needs a GPU")
