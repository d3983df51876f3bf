"""How each family of language models of transformers is served: measured on toys, kept in docs/models.md.

A toy of each family is brought up by the engine as any model is (`codegen/toy_runs.py`). Its greedy
texts are held against transformers' own `generate`, and those of requests alone against those of all
of them in one batch, bit for bit.
"""

from __future__ import annotations

import platform
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from codegen.toy_runs import Outcome

PAGE = Path(__file__).parents[1] / "docs" / "models.md"

LEVELS = ("fused", "native", "paged+merged", "paged", "batched", "sequential", "uncached")  # best first
DIFFERS = "differs"  # served, but its text isn't that of transformers
NOT_SERVED = "not served"
NOT_TRIED = "not tried"

_EXACT = {True: "yes", False: "no", None: "-"}
_LONGEST = 150  # of a remark, in characters


@dataclass(frozen=True, slots=True)
class Row:
    """One family of the table."""

    family: str  # transformers' `model_type`
    model: str  # transformers' class
    runs: str  # one of LEVELS, or what became of it
    exact: bool | None  # the same bits alone and in a batch; None where it isn't served
    remarks: str

    def __str__(self) -> str:
        """Return the table's line."""
        return f"| {self.family} | {self.model} | {self.runs} | {_EXACT[self.exact]} | {self.remarks} |"


def families() -> dict[str, str]:
    """Return transformers' families of models that write text, with their classes.

    Those of a family with an encoder stand behind its decoders, if these are models of their own.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )

    from codegen.toys import ENCODER, reads_text

    decoders = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES | MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    whole = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    behind = {
        f"{family}{ENCODER}" if family in decoders else family: model
        for family, model in whole.items()
        if reads_text(family) and decoders.get(family) != model
    }
    return dict(sorted((decoders | behind).items()))


def write(only: Sequence[str] = ()) -> None:
    """Measure all families, or the named ones beside the rows that the page has, and write the page."""
    rows = {row.family: row for row in read()} if only else {}
    known = families()
    for family in only or known:
        rows[family] = measure(family, known[family])
        print(rows[family], flush=True)
        PAGE.write_text(page([rows[each] for each in known if each in rows]))  # it may be interrupted


def read() -> list[Row]:
    """Return the rows that the page has."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    table = lines[lines.index(_HEADER.splitlines()[0]) + 1 :]
    exact = {text: value for value, text in _EXACT.items()}
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    return [Row(family, model, runs, exact[bits], remarks) for family, model, runs, bits, remarks in cells]


def measure(family: str, model: str) -> Row:
    """Return how a family's toy is served; what can't be made, loaded or run is said in its row."""
    import torch

    from codegen.toy_runs import run_toy
    from codegen.toys import generate_whole, prompts, save_toy

    with tempfile.TemporaryDirectory() as temporary:
        try:
            toy = save_toy(family, Path(temporary), dtype=torch.bfloat16)  # as most models are stored
        except Exception as error:  # a family's own code may refuse a toy in any way
            return Row(family, model, NOT_TRIED, None, f"no toy can be made of it: {_line(error)}")
        try:
            generate_whole(toy, prompts(5)[0], 1)
        except Exception as error:  # it may need an image
            return Row(family, model, NOT_TRIED, None, f"its own code takes no text alone: {_line(error)}")
        try:
            outcome = run_toy(toy, Path(temporary))
        except Exception as error:  # the page tells whatever it was
            return Row(family, model, NOT_SERVED, None, _line(error).replace(f"`{temporary}`", "it"))
    return _row(family, model, outcome)


def _row(family: str, model: str, outcome: Outcome) -> Row:
    if not (outcome.right or outcome.as_generated):
        return Row(family, model, DIFFERS, outcome.exact, f"wrong text at level {outcome.level}")
    if outcome.promised and not outcome.exact:
        return Row(family, model, DIFFERS, False, f"bits change at level {outcome.level}, unlike it says")
    remarks = [outcome.reason] if outcome.reason else []
    if not outcome.as_generated:
        remarks.append("transformers' `generate` says other things than its `forward`")
    if not outcome.right:
        remarks.append("transformers' `forward` says other things than its `generate`")
    return Row(family, model, outcome.level, outcome.promised, _short("; ".join(remarks)))


def page(rows: Sequence[Row]) -> str:
    """Return the page's text."""
    import transformers

    return _PAGE.format(
        version=transformers.__version__,
        machine=platform.machine(),
        counts="\n".join(counts(rows)),
        header=_HEADER,
        rows="\n".join(map(str, rows)),
    )


def counts(rows: Sequence[Row]) -> list[str]:
    """Return the table of how many families run at which level, and with the same bits in any batch."""
    number = Counter(row.runs for row in rows)
    exact = Counter(row.runs for row in rows if row.exact)
    lines = [
        f"| {runs} | {number[runs]} | {exact[runs] if runs in LEVELS else '-'} |"
        for runs in (*LEVELS, DIFFERS, NOT_SERVED, NOT_TRIED)
        if number[runs]
    ]
    served = sum(number[level] for level in LEVELS)
    return [*lines, f"| all that are served | {served} of {len(rows)} | {sum(exact[at] for at in LEVELS)} |"]


def _line(error: Exception) -> str:
    """Return an error as part of a line of the table."""
    from inference.errors import ModelUnavailable
    from inference.telling import told

    if isinstance(error, ModelUnavailable):  # a sentence of ours, which may come from another process
        return _short(str(error))
    return _short(told(_innermost(error)))


def _innermost(error: BaseException) -> BaseException:
    """Return what a configuration's check said by itself: transformers' own words around it say less."""
    cause = error.__cause__
    return cause if cause is not None and type(error).__name__.startswith("StrictDataclass") else error


def _short(text: str) -> str:
    line = " ".join(text.replace("|", "/").split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


_HEADER = "| family | model | runs | bit-exact | remarks |\n|---|---|---|---|---|"
_PAGE = """\
# Models

<!-- Made by `python -m codegen families`; edits are lost when it is made again. -->

Every family of causal language models that transformers {version} has, of models that take text beside
images, and of those whose encoder reads text (`+encoder` where their decoders are models of their own,
too), and how Parley serves their text on a CPU ({machine}); which ones are shown images says
[images.md](images.md). Measured on toys: small random models of each family, stored in bfloat16, brought up
by the engine as any model is, their greedy texts held against transformers' own `generate` in float32.
Levels, best first:

* `fused`: whole decoder layers in one call of the C extension;
* `native`: linears and attention of the C extension, the rest in torch;
* `paged+merged`: one packed step over the paged cache, parallel linears merged, all in torch;
* `paged`: the same with the linears as they are;
* `batched`: through the model's own attention, over a cache in blocks: single tokens, and short
  pieces, of all sequences are batches, padded on the left (DeepSeek V4's only those of one length), and
  each longer piece of a prompt is alone; linears are the C extension's;
* `sequential`: one sequence after the other through transformers' own cache; of models with an encoder the
  linears are the C extension's, and texts go on in batches where the table doesn't say that they can't,
  whose prompts were read one by one;
* `uncached`: the same, and each token computes its whole sequence again.

Layers that keep a state in place of keys and values (state spaces, linear attention, short convolutions) have
it for each sequence at the packed levels, too. At `fused` gated delta nets, Mamba, Mamba 2 and short
convolutions are part of the one call; at `native` they are computed by the C extension, others by their own
code. The prefix cache keeps a state at the end of each long prompt and text, and where others leave one. On a
GPU those four are computed by Triton's kernels, at `paged+merged` or `paged`; models with others are
`sequential` there.

Multi-head latent attention (DeepSeek V2 and V3, Kimi K2, MiniCPM3, GLM-4.7-Flash and others) is computed at
the packed levels over the latents that it makes keys and values of, and these are all that the cache has of a
token. With `--latent-cache false`, and where an adapter adds to what makes the keys and values, each head's
are kept.

A level is taken only if it reproduces the model's own logits while it is loaded; `/info` and the log
say which one was. *Bit-exact* means that tokens and log-probabilities have the same bits alone and in
any batch, with prompts in pieces, after preemption and from the prefix cache; elsewhere the last bits
of a log-probability can depend on these.

On a GPU a family is tried in the same way, and the log and `/info` say the level alike, but
`batched`: such models are `sequential` there. The table wasn't measured there, only models of Llama's and
Qwen2's shapes were (docs/benchmarks.md). There `fused` means the
same layers rebuilt over Triton's kernels, nine to twelve each, and steps of decodes replayed as CUDA graphs;
there is no `native`: what isn't fused is `paged+merged` or `paged`, the model's own code over Triton's paged
attention, linears, norms and mixtures' experts, in graphs as well where nothing in it waits for the device.
The kernels for attention over latents were compiled for a Hopper, and have met no GPU yet. With
`--native-kernels false` torch computes the same levels, without graphs. Bits are the same in any batch with
`--deterministic` only.

| runs | families | bit-exact |
|---|---|---|
{counts}

{header}
{rows}
"""
