"""What must be set before torch is imported; imports nothing heavy itself."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from inference.grammar.stack import STACK_BYTES


def prepare_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set the process up for the engine; call it first, values that are set already stay.

    OpenMP's threads spin while they wait. Where the HTTP side or anything else shares the cores,
    that steals the time of the very thread they wait for: steps take up to ten times as long.
    Tokenizers are called from our own threads, so theirs would only add to them. llguidance's own
    threads recurse into grammars, for which Rust's usual stack of 2 MiB is little.
    """
    environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    environ.setdefault("RUST_MIN_STACK", str(STACK_BYTES))
