"""Seeds of requests that bring faults about in the engine of `tests.faults.engine`; imports nothing heavy."""

from __future__ import annotations

PROGRAM = ("-m", "tests.faults.engine")
HANGS = 660_001  # a step with it never ends, and takes all of a core
CRASHES = 660_002  # a step with it reads memory that isn't there
RAISES = 660_003  # a step with it raises
NEEDS_MEMORY = 660_004  # there is no memory for a step with it and more than one other
TOO_LARGE = 660_005  # there is no memory for any step with it
SLOW = 660_006  # a step with it takes 50 ms longer
