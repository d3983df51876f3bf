"""The sections of docs/benchmarks.md about what a server does when it is told to."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.tables import Row, table


def speculation(results: Row) -> Iterator[str]:
    yield from ["", "## Guessing ahead", ""]
    yield (
        f"`python -m benchmarks.speculation`, the shape of {results['like']}, {results['weights']}, in "
        "process: the rate of greedy texts with guesses (`--speculate`) in units of that without, by the "
        "share of guesses that are right. They are known beforehand here, so that it can be chosen; how "
        "large it is with a model and its texts, `parley_guessed_tokens` says. A step computes eight tokens "
        "at most. Texts are the same in all runs. Where nearly all guesses are wrong, few are made."
    )
    yield ""
    rows = results["rows"]
    shares = sorted({row["right"] for row in rows})
    cases = sorted({(row["batch"], row["guesses"]) for row in rows})
    ratios = {(row["batch"], row["guesses"], row["right"]): row["ratio"] for row in rows}
    lines = (
        [str(batch), str(guesses), *(f"{ratios[batch, guesses, share]:.2f}" for share in shares)]
        for batch, guesses in cases
    )
    yield from table(["texts at once", "`--speculate`", *(f"{share} % right" for share in shares)], lines)


def encoders(results: Row) -> Iterator[str]:
    """Yield the section of models with an encoder and a decoder."""
    yield from ["", "## Models with an encoder", ""]
    yield (
        f"`python -m benchmarks.encoders`, in process: tokens/s of greedy texts, {results['prompt']} tokens "
        f"in and {results['tokens']} out, random weights in real shapes stored in bfloat16, "
        "beside transformers' own `generate` with the same weights in float32, in turn, medians of "
        f"{results['reps']}. `one at a time` is `--fuse-layers false`."
    )
    yield ""
    heads = [
        "like",
        "texts at once",
        "Parley",
        "one at a time",
        "transformers, one batch",
        "ratio",
        "to one at a time",
    ]
    yield from table(
        heads,
        (
            [
                row["like"],
                str(row["batch"]),
                *(f"{row[name]:.1f}" for name in ("parley", "alone", "transformers")),
                *(f"{row['parley'] / row[name]:.2f}" for name in ("transformers", "alone")),
            ]
            for row in results["rows"]
        ),
    )


def states(results: Row) -> Iterator[str]:
    """Yield the section of models whose layers keep a state."""
    yield from ["", "## Layers that keep a state", ""]
    yield (
        f"`python -m benchmarks.states`, in process: tokens/s of greedy texts, {results['prompt']} tokens in "
        f"and {results['tokens']} out, beside transformers' own `generate` with the same weights in float32, "
        f"in turn, medians of {results['reps']}; random weights in real shapes with vocabularies of "
        f"{results['words']:,}, stored in bfloat16. `next turn` is the first token of a message of "
        f"{results['turn']} tokens behind a conversation of {results['talk'] + results['tokens']:,}, in "
        "milliseconds: all of it read, and with the state that was kept of it."
    )
    yield ""
    rows = results["rows"]
    batches = [rate["batch"] for rate in rows[0]["rates"]]
    head = [f"{batch} at once: transformers, Parley, ratio" for batch in batches]
    lines = (
        [
            row["like"],
            row["level"].partition(":")[0],
            *map(_beside, row["rates"]),
            f"{row['turn_ms']['whole']:.0f}",
            f"{row['turn_ms']['kept']:.0f}",
            f"{row['same_texts']:.0%}",
        ]
        for row in rows
    )
    yield from table(["shape", "level", *head, "next turn, all read", "kept", "same texts"], lines)


def shapes(results: Row) -> Iterator[str]:
    """Yield the section of models of other shapes than Llama's."""
    yield from ["", "## Models of other shapes", ""]
    yield (
        f"`python -m benchmarks.shapes`, in process: tokens/s of greedy texts, {results['prompt']} tokens "
        f"in and {results['tokens']} out, beside transformers' own `generate` with the same weights in "
        f"float32, in turn, medians of {results['reps']}; random weights in real shapes with vocabularies of "
        f"{results['words']:,}, stored in bfloat16. `layer by layer` is `--fuse-layers false`, `4 bits` is "
        "`--quantize bitsandbytes-nf4`, which rounds."
    )
    yield ""
    lines = (
        [
            row["like"],
            str(rate["batch"]),
            *(f"{rate[name]:.1f}" for name in ("transformers", "layer by layer", "parley", "4 bits")),
            f"**{rate['parley'] / rate['transformers']:.1f}**",
            f"{row['same_texts']:.0%}",
        ]
        for row in results["rows"]
        for rate in row["rates"]
    )
    heads = ["shape", "at once", "transformers", "layer by layer", "Parley", "4 bits", "ratio", "same texts"]
    yield from table(heads, lines)


def _beside(rate: Row) -> str:
    ours, other = rate["parley"], rate["transformers"]
    return f"{other:.1f}, {ours:.1f}, **{ours / other:.1f}**"


def adapters(results: Row) -> Iterator[str]:
    """Yield the section of LoRA adapters."""
    yield from ["", "## LoRA adapters", ""]
    yield (
        f"`python -m benchmarks.adapters`, the shape of {results['like']}, {results['weights']}, in process: "
        f"the rate of greedy texts, and of prompts of {results['context']} tokens, where {results['count']} "
        f"adapters of rank {results['rank']} of all linears of the layers are loaded, in units of the same "
        "without adapters."
    )
    yield ""
    cases = list(dict.fromkeys(row["case"] for row in results["rows"]))
    ratios = {(row["case"], row["batch"]): row["ratio"] for row in results["rows"]}
    batches = sorted({batch for _, batch in ratios if batch})
    lines = (
        [case, *(f"{ratios[case, batch]:.2f}" for batch in batches), f"{ratios[case, 0]:.2f}"]
        for case in cases
    )
    yield from table(["", *(f"texts, batch {batch}" for batch in batches), "prompts"], lines)


def switches(results: Row) -> Iterator[str]:
    """Yield the section of optimisations that were switched off."""
    yield from ["", "## With and without", ""]
    yield (
        "`python -m benchmarks.switches --folder FOLDER`: two servers of Parley with empty caches, one of "
        "them with the flags of the first column, asked in turn over HTTP; medians, and of each round's "
        "ratio of output tokens/s. In brackets the median time to first token and the 99th percentile of the "
        "time between tokens, ms."
    )
    yield ""
    header = [
        "switched off",
        "model",
        "server",
        "workload",
        "rounds",
        "ratio",
        "with it",
        "without",
        "measured",
    ]
    yield from table(header, map(_switched, results["rows"]))


def fleet(results: Row) -> Iterator[str]:
    """Yield the section of several replicas."""
    affinity, gateway = results["affinity"], results["gateway"]
    yield from ["", "## Several replicas", ""]
    yield (
        f"`python -m benchmarks.fleet --folder FOLDER`: {results['replicas']} replicas on these cores, "
        f"{results['rounds']} rounds. Eight conversations at once, each turn sent with all before it, 1,024 "
        "tokens and more, after about a second of reading: the first token of a later turn comes after "
        f"{affinity['with_ms']:.0f} ms where it goes to the replica that computed what came before, and "
        f"after {affinity['without_ms']:.0f} ms ({affinity['without_ms'] / affinity['with_ms']:.1f} times as "
        "late) where it goes to the idlest (`--prefix-affinity false`). A request for one token takes "
        f"{gateway['through_ms']:.1f} ms through the gateway, and {gateway['direct_ms']:.1f} of a server "
        "without replicas, all of them on the same two cores as Ray's processes and the client."
    )


def _switched(row: Row) -> list[str]:
    cells = [
        f"{found['rate']:.1f} ({found['first_ms']:.0f} / {found['gap_ms']:.0f})"
        for found in (row["with_it"], row["without"])
    ]
    names = [f"`{row['off']}`", row["model"], row["server"], row["workload"], str(row["rounds"])]
    return [*names, f"{row['ratio']:.2f}", *cells, row["day"]]
