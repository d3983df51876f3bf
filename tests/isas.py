"""Which instructions a CPU of this machine's architecture may have, from the fewest to the best."""

from __future__ import annotations

import platform

ISAS = ("baseline", "neon") if platform.machine() == "aarch64" else ("baseline", "avx2", "avx512", "amx")
