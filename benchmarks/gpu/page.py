"""What docs/benchmarks.md says of GPUs: the goals, and the results of those that were measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.tables import Row, table

# On an H100 in bfloat16: (model, what, batch) and tokens a second
GOALS: dict[tuple[str, str, int | None], int] = {
    ("llama-3.1-8b", "decode", 1): 165,
    ("llama-3.1-8b", "decode", 256): 16_000,
    ("llama-3.1-8b", "prefill", None): 40_000,
    ("llama-3.1-8b", "mixed", None): 8_500,
    ("llama-3.2-1b", "decode", 1): 800,
    ("llama-3.2-1b", "mixed", None): 35_000,
    ("qwen2.5-0.5b", "decode", 1): 1_300,
    ("qwen2.5-0.5b", "mixed", None): 60_000,
}
_IDLE = 0.03
MODELS = ("llama-3.1-8b", "llama-3.2-1b", "qwen2.5-1.5b", "qwen3.5-0.8b", "qwen2.5-0.5b")


def section(results: Path) -> Iterator[str]:
    """Yield the section's lines; `results` is the folder of them."""
    yield from ["", "## On a GPU", ""]
    yield (
        "`python -m benchmarks.gpu`, on a machine with torch, Triton and transformers, needs no other "
        "package and no download: models of random weights in real shapes, in this order: whether texts are "
        "transformers' own and bits the same in any batch, what memory and matrix units give, decodes, "
        "prompts, 256 requests of 100 to 1,024 tokens in and out (`mixed`), a shared prefix, single "
        "operations, transformers' continuous batching in the same run, and each optimisation off in turn."
    )
    measured = [json.loads(file.read_text()) for file in sorted(results.glob("gpu-*.json"))]
    measured = [each for each in measured if each["device"] == "cuda"]
    if not measured:
        yield from ["", "Nothing of it was measured on a GPU yet. The goals on one H100, in bfloat16:", ""]
        rows = ([model, _named(what, batch), f"{goal:,}"] for (model, what, batch), goal in GOALS.items())
        yield from table(["model", "", "tokens/s"], rows)
    for each in measured:
        yield from of_gpu(each)


def of_gpu(results: Row) -> Iterator[str]:
    """Yield the lines of one GPU's results."""
    parts = results["parts"]
    yield from ["", f"### {results['gpu']}", ""]
    yield (
        f"torch {results['torch']}, Triton {results['triton']}, transformers {results['transformers']}, on "
        f"{results['day']}; in bfloat16. {_ceilings(parts)}The share is of what the ceilings allow."
    )
    yield ""
    rows = [_speed(model, row) for model in MODELS for row in parts.get(model, ()) if "share" in row]
    rows += [_speed(model, row) for model in MODELS for row in parts.get(model, ()) if "requests" in row]
    header = ["model", "", "context", "tokens/s", "share", "goal", ""]
    yield from table(header, rows)
    yield from _idle(parts)
    yield from _beside(parts)
    for row in parts.get("baseline", ()):
        if "times" in row:
            yield from [
                "",
                f"On {row['requests']} requests of {row['tokens_each']} tokens each the engine is "
                f"{row['times']:.1f} times as fast as transformers' continuous batching (goal: 5).",
            ]
    yield from _switches(parts.get("switches", ()))
    if notes := results.get("notes"):
        of: dict[str, list[str]] = {}
        for part, note in notes.items():
            of.setdefault(note, []).append(part)
        yield from ["", *(f"{', '.join(parts)}: {note}." for note, parts in of.items())]
    if results["missing"]:
        yield from ["", "Missing: " + "; ".join(f"{part}: {why}" for part, why in results["missing"].items())]


def _ceilings(parts: Row) -> str:
    rows = parts.get("ceilings", ())
    said = (
        f"Memory copies at {row['copy_gb_per_second']:,.0f} GB/s and is read at "
        f"{row['read_gb_per_second']:,.0f}, matrices multiply at {row['tflops']:,.0f} TFLOP/s. "
        for row in rows
    )
    return "".join(said)


def _speed(model: str, row: Row) -> list[str]:
    what, batch = row["what"], row.get("batch")
    goal = GOALS.get((model, what, batch))
    judged = ""
    if goal is not None:
        judged = "reached" if row["tokens_per_second"] >= goal else "**not reached**"
    return [
        model, _named(what, batch), str(row.get("context", row.get("prompt", ""))),
        f"{row['tokens_per_second']:,.0f}", f"{row['share']:.0%}" if "share" in row else "",
        "" if goal is None else f"≥ {goal:,}", judged,
    ]  # fmt: skip


def _beside(parts: Row) -> Iterator[str]:
    """Yield how models whose steps were measured beside transformers' own compare."""
    for model in MODELS:
        rows = parts.get(model, ())
        ours = {row["batch"]: row["tokens_per_second"] for row in rows if row["what"] == "decode"}
        for row in (each for each in rows if each["what"].startswith("transformers")):
            theirs, batch = row["tokens_per_second"], row["batch"]
            yield from [
                "",
                f"transformers' own steps of {model}, {batch} at once: {theirs:,.0f} tokens/s; the engine's "
                f"are {ours[batch] / theirs:.1f} times as fast.",
            ]


def _idle(parts: Row) -> Iterator[str]:
    found = [(model, row) for model in MODELS for row in parts.get(model, ()) if "kernels_per_step" in row]
    if not found:
        return
    yield from [
        "",
        "How long the GPU rests in steady decodes (goal: under 3 %), by what its kernels take of a step that "
        "isn't watched, and of one that is, which takes the host longer; and how many kernels run:",
        "",
    ]
    rows = (
        [
            model,
            str(row["batch"]),
            f"{max(row['idle'], 0):.1%}",  # of steps one after the other: a busy GPU seems to gain time
            f"{row['idle_watched']:.1%}",
            "reached" if row["idle"] < _IDLE else "**not reached**",
            f"{row['kernels_per_step']:.0f}",
            f"{row['kernels_per_layer']:.1f}",
        ]
        for model, row in found
    )
    yield from table(["model", "batch", "idle", "watched", "", "kernels a step", "a layer"], rows)


def _switches(rows: Iterable[Row]) -> Iterator[str]:
    rows = list(rows)
    if not rows:
        return
    yield from ["", "Tokens/s with an optimisation off, and what `--deterministic` costs:", ""]
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        name = f"{row['model']}, {_named(row['what'], row.get('batch'))}"
        cells.setdefault(row["without"], {})[name] = f"{row['tokens_per_second']:,.0f}"
    columns = list(dict.fromkeys(name for row in cells.values() for name in row))
    lines = ([without, *(row.get(name, "") for name in columns)] for without, row in cells.items())
    yield from table(["", *columns], lines)


def _named(what: str, batch: int | None) -> str:
    return what if batch is None else f"{what}, batch {batch}"
