"""Measure what the machine can do at most, and which share of it the engine's decode steps reach.

    python -m benchmarks.roofline [--models FOLDER/models] [--quick]

The limits (memory read per second, products per second in fp32, bf16 and int8) are measured before and
after the engine in the same run, the larger counts; but a virtual machine's memory is not as fast in each
second, so that how fast it is read is measured between the steps, too, and their roof is by that. A step
reads each weight and all keys and values once, and multiplies each weight by each sequence; the larger of
both times is the roof. Writes benchmarks/results/roofline-MACHINE.json and docs/benchmarks.md.
"""

from __future__ import annotations

from inference.environment import prepare_environment

prepare_environment()

import argparse  # noqa: E402
import json  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import asdict, dataclass, replace  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from benchmarks import report  # noqa: E402
from benchmarks.inprocess import Steps, engine  # noqa: E402
from benchmarks.limits import Limits, measure_limits, reading  # noqa: E402
from benchmarks.machine import RESULTS, about, machine  # noqa: E402
from benchmarks.serving.bounds import Size  # noqa: E402
from benchmarks.serving.models import SHAPES, make_model  # noqa: E402
from inference.config import EngineConfig, ModelConfig  # noqa: E402
from inference.kernels.native import Library, open_library  # noqa: E402

NAME = "llama-135m"
CONTEXT = 128
STEPS = 64
GOALS = {1: 0.85, 32: 0.60}  # share of the roof, by batch size


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to hold the weights and to multiply by them."""

    name: str
    suffix: str  # of the model's directory
    weight_bytes: float
    peak: str  # the limit that its products have
    dtype: str = "auto"
    quantize: str | None = None
    narrow: bool = True
    compress: bool = False
    kv_bytes: int = 4  # of a number in the cache

    def is_had(self, library: Library | None) -> bool:
        """Return whether the CPU computes so: where it doesn't, weights are kept and multiplied otherwise."""
        if library is None:
            return not (self.compress or self.quantize) and self.peak in ("float_flops", "mixed_flops")
        return (library.compresses or not self.compress) and (
            library.has_bf16 or self.peak != "bfloat16_flops"
        )


VARIANTS = (
    Variant("bf16, products in fp32", "-bf16", 2, "mixed_flops"),
    Variant("bf16 in 12 bits, products in fp32", "-bf16", 1.5, "mixed_flops", compress=True),
    Variant("bf16, products in bf16", "-bf16", 2, "bfloat16_flops", dtype="bfloat16", kv_bytes=2),
    Variant(
        "bf16 in 12 bits, products in bf16",
        "-bf16",
        1.5,
        "bfloat16_flops",
        dtype="bfloat16",
        compress=True,
        kv_bytes=2,
    ),
    # Four bits and a scale in 32 for each 64, but for the head, which has 12
    Variant(
        "nf4, products in fp32", "-bf16", 0.76, "mixed_flops", quantize="bitsandbytes-nf4", compress=True
    ),
    Variant("fp32", "", 4, "float_flops", narrow=False),
    Variant("int8", "", 1, "int8_flops", quantize="int8", kv_bytes=2),
)


@dataclass(frozen=True, slots=True)
class Demand:
    """What one step needs of the machine."""

    read_bytes: float
    linear_operations: float
    attention_operations: float  # always in fp32

    def seconds(self, limits: Limits, peak: str) -> tuple[float, str]:
        """Return the least time of a step, and what bounds it."""
        reading = self.read_bytes / limits.read_bytes
        products = self.linear_operations / getattr(limits, peak)
        products += self.attention_operations / limits.float_flops
        return (reading, "reading") if reading >= products else (products, "products")


def main() -> None:
    """Measure, print and write down."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as temporary:
        models = arguments.models or Path(temporary)
        if not (models / NAME).exists():
            make_model(models, NAME)
        library = open_library()
        beside = reading(library) if library else None
        limits = measure_limits(library)
        measured = [
            (each, measure(models, each, beside, arguments.quick))
            for each in VARIANTS
            if each.is_had(library)
        ]
        limits = limits.larger(measure_limits(library))
    print(limits)
    steps = [share(variant, step, limits) for variant, found in measured for step in found]
    for row in steps:
        print(
            f"{row['weights']:<34} batch {row['batch']:3d}: {row['step_ms']:7.1f} ms, "
            f"roof {row['roof_ms']:7.1f} ms ({row['bound']}), share {row['share']:.0%}"
        )
    if not arguments.quick:
        written = {
            **about(),
            "like": SHAPES[NAME].like,
            "limits": {name: float(f"{value:.4g}") for name, value in asdict(limits).items()},
            "steps": steps,
        }
        (RESULTS / f"roofline-{machine()}.json").write_text(json.dumps(written, indent=1) + "\n")
        report.write()


def measure(models: Path, variant: Variant, beside: Callable[[], float] | None, quick: bool) -> list[Steps]:
    """Return the decode steps of a variant at each batch size that has a goal."""
    model = ModelConfig(
        model_id=str(models / f"{NAME}{variant.suffix}"), dtype=variant.dtype, quantize=variant.quantize
    )
    config = EngineConfig(model=model, narrow_weights=variant.narrow, compress_weights=variant.compress)
    with engine(config, beside) as running:
        return list(running.decode(list(GOALS), CONTEXT, 4 if quick else STEPS))[::-1]


def demand(variant: Variant, batch: int, context: float) -> Demand:
    """Return what a step of `batch` sequences needs, each with `context` tokens."""
    size = Size.of(SHAPES[NAME])
    return Demand(
        read_bytes=variant.weight_bytes * size.weights + variant.kv_bytes * size.kv * context * batch,
        linear_operations=2.0 * size.weights * batch,
        attention_operations=float(size.attention * context * batch),
    )


def share(variant: Variant, steps: Steps, limits: Limits) -> dict[str, Any]:
    """Return a step beside its roof."""
    if steps.beside is not None:
        limits = replace(limits, read_bytes=steps.beside)
    roof, bound = demand(variant, steps.batch, steps.context).seconds(limits, variant.peak)
    return {
        "weights": variant.name,
        "batch": steps.batch,
        "context": round(steps.context, 1),
        "step_ms": round(1e3 * steps.seconds, 2),
        "least_step_ms": round(1e3 * steps.least, 2),
        "tokens_per_second": round(steps.batch / steps.seconds, 1),
        "roof_ms": round(1e3 * roof, 2),
        "roof_tokens_per_second": round(steps.batch / roof, 1),
        "bound": bound,
        "read_bytes_per_second": float(f"{limits.read_bytes:.4g}"),
        "share": round(roof / steps.seconds, 3),
        "goal": GOALS.get(steps.batch),
    }


def _arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks.roofline", description=__doc__, formatter_class=formatter
    )
    parser.add_argument("--models", type=Path, help="folder of models that were made before")
    parser.add_argument("--quick", action="store_true", help="a few steps; nothing is written")
    return parser.parse_args()


if __name__ == "__main__":
    main()
