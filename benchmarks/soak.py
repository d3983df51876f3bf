"""Ask a small model for 10,000 sequences of every kind, cancel some, and hold the engine to its promises.

    python -m benchmarks.soak [--sequences 10000] [--model DIRECTORY] [--speculate N] [--adapters N]
        [--in-thread] [--write]
    python -m benchmarks.soak --hours 1 --faults [--write]

Every sequence ends in exactly one terminal event, its events are in order and whole, sequences that
are asked for again say the same, and in the end nothing is held. Memory and open files are read
twice a second, of this process and the engine's; neither may grow once all has warmed up. The cache
is kept small, so that sequences are preempted. Prints a report as JSON; ends with 1 if a promise was
broken.

With `--hours`, a whole server is asked over HTTP for so long, by clients of every kind: no request may be
without an end, no error without a fault that explains it, and nothing may grow. `--faults` has engine and
API workers killed, stopped and poisoned in the first half, and clients misbehave all the time.
"""

from __future__ import annotations

from inference.environment import prepare_environment

prepare_environment()

import argparse  # noqa: E402
import asyncio  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from tempfile import TemporaryDirectory  # noqa: E402

from benchmarks import report as page  # noqa: E402
from benchmarks.machine import RESULTS, about, machine  # noqa: E402
from benchmarks.random_adapters import save_adapters  # noqa: E402
from benchmarks.soak_run import Report, soak  # noqa: E402
from inference.config import EMBEDDED_MODEL, EngineConfig, ModelConfig  # noqa: E402
from inference.core import Core  # noqa: E402
from inference.files.adapters import adapter_names  # noqa: E402
from inference.frontend.client import EngineClient  # noqa: E402
from inference.text.pipeline import load_text  # noqa: E402

LONGEST = 256  # tokens of a prompt and its text
WARM_SEQUENCES = 5_000  # fewer are over before memory has come to rest


def main() -> int:
    """Run one soak; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=10_000)
    parser.add_argument("--model", help="a directory or a hub id; without it the embedded model")
    parser.add_argument("--threads", type=int, help="of the engine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speculate", type=int, default=0, help="tokens guessed ahead of a text")
    parser.add_argument("--adapters", type=int, default=0, help="LoRA adapters that some requests name")
    parser.add_argument("--in-thread", action="store_true", help="run the engine in a thread of this process")
    parser.add_argument("--write", action="store_true", help="keep the report in benchmarks/results")
    parser.add_argument("--hours", type=float, help="soak a server over HTTP for so long")
    parser.add_argument("--faults", action="store_true", help="with --hours: bring faults about meanwhile")
    options = parser.parse_args()
    if options.hours:
        return served(options.hours, faults=options.faults, seed=options.seed, write=options.write)
    with TemporaryDirectory() as temporary:
        config = make_config(
            options.model,
            separate_process=not options.in_thread,
            threads=options.threads,
            speculate=options.speculate,
            adapters=with_adapters(options.model, Path(temporary), options.adapters),
        )
        report = asyncio.run(run(config, options.sequences, seed=options.seed, show=print))
    text = json.dumps({**about(), **vars(report)}, indent=2)
    print(text)
    if options.write:
        (RESULTS / f"soak-{machine()}.json").write_text(f"{text}\n")
        page.write()
    warm = options.sequences >= WARM_SEQUENCES
    return 1 if report.faults or (warm and report.grown) else 0


def served(hours: float, *, faults: bool, seed: int, write: bool) -> int:
    """Soak a server; 1 if a promise was broken."""
    from benchmarks.soak_served import soak_served

    report = asyncio.run(
        soak_served(hours, faults=faults, seed=seed, show=lambda line: print(line, flush=True))
    )
    text = json.dumps({**about(), **vars(report)}, indent=2)
    print(text)
    if write:
        (RESULTS / f"served-{machine()}.json").write_text(f"{text}\n")
        page.write()
    return 1 if report.unexplained or report.grown else 0


def make_config(
    model: str | None = None,
    *,
    separate_process: bool,
    threads: int | None = None,
    speculate: int = 0,
    adapters: tuple[str, ...] = (),
) -> EngineConfig:
    """Return a configuration in which everything is scarce."""
    return EngineConfig(
        model=ModelConfig(model_id=model, adapters=adapters),
        separate_process=separate_process,
        threads=threads,
        max_concurrent_requests=48,
        max_total_tokens=LONGEST,
        max_batch_total_tokens=LONGEST * 3 // 2,
        max_batch_prefill_tokens=96,
        max_batch_size=24,
        speculate=speculate,
    )


def with_adapters(model: str | None, directory: Path, count: int) -> tuple[str, ...]:
    """Return so many random adapters of a model's directory, or of the embedded one, once saved."""
    path = EMBEDDED_MODEL if model is None else Path(model)
    return save_adapters(path, directory / "adapters", count, rank=6) if count else ()


async def run(config: EngineConfig, sequences: int, *, seed: int, show: Callable[[str], None]) -> Report:
    """Start an engine, soak it and stop it."""
    client = EngineClient(
        _core(config), config, lambda: load_text(config.model, workers=config.validation_workers)
    )
    try:
        await client.start(show)
        names = tuple(sorted(adapter_names(config.model.adapters)))
        return await soak(client, sequences, longest=LONGEST, seed=seed, show=show, adapters=names)
    finally:
        await client.close()


def _core(config: EngineConfig) -> Core:
    if config.separate_process:
        from inference.process.spawned import SpawnedCore

        return SpawnedCore(config)
    from inference.engine.engine import TorchCore

    return TorchCore(config)


if __name__ == "__main__":
    sys.exit(main())
