"""Measure what rounding costs the embedded model: `--quantize` and `--dtype bfloat16`, as served.

    python -m benchmarks.quality [--per-kind 25] [--output FILE]

The texts are the held-out questions of `codegen/embedded` with their right answers: none of their keys
is ever trained on. Perplexity is of the answers' tokens, given all before them; an answer counts as
right if each of its tokens is the model's first choice. Beside it stands how often the first choice is
the exact model's. The results say what of the machine decides them.
"""

from __future__ import annotations

from inference.environment import prepare_environment

prepare_environment()

import argparse  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmarks import report  # noqa: E402
from benchmarks.machine import RESULTS, about, machine  # noqa: E402
from codegen.embedded.chat import TURN_END  # noqa: E402
from codegen.embedded.corpus import held_out  # noqa: E402
from inference.config import EMBEDDED_MODEL, ModelConfig  # noqa: E402
from inference.files.checkpoint import find_checkpoint, read_weights  # noqa: E402
from inference.kernels.native import Library, open_library  # noqa: E402
from inference.kv_cache.blocks import blocks_for  # noqa: E402
from inference.levels.served import Served  # noqa: E402
from inference.loading.counting import kept_weights  # noqa: E402
from inference.loading.keeping import KeptWeights  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.loading.model import load_model, read_config  # noqa: E402
from inference.quantised.asked import FOUR_BITS  # noqa: E402
from inference.sequences.state import Chunk, Decodes, Sequence, SlotTable, pack  # noqa: E402
from inference.types import CoreRequest, LogprobsMode, Sampling  # noqa: E402

_LONGEST = 1024  # tokens of a text


@dataclass(frozen=True, slots=True)
class Text:
    """A question and its right answer in tokens."""

    ids: tuple[int, ...]
    answer: int  # where the answer begins


@dataclass(frozen=True, slots=True)
class Said:
    """What a model makes of an answer's tokens."""

    logprobs: Tensor  # (tokens,) of the right ones
    first: Tensor  # (tokens,): its first choices
    right: Tensor  # (tokens,)


def main() -> None:
    """Read the command line, measure, print a table and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--per-kind", type=int, default=25, help="held-out questions of each kind")
    parser.add_argument("--output", type=Path, default=RESULTS / f"quality-{machine()}.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    library = open_library()
    if library is None:
        raise SystemExit("There is nothing to compare: the C extension isn't built (see the warning above)")
    texts = _texts(arguments.per_kind)
    results = {**about(), "texts": len(texts), "variants": _measure(library, texts)}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    report.write()


def _measure(library: Library, texts: list[Text]) -> dict[str, Any]:
    exact = _say(_serve(Options(library=library)), texts)
    rows = {"exact": _row(exact, exact)}
    quantized = _serve(Options(library=library, quantize=True, kv_dtype=torch.bfloat16))
    rows["int8"] = _row(_say(quantized, texts), exact)
    if library.has_bf16:
        rounded = _serve(Options(library=library, round_inputs=True, kv_dtype=torch.bfloat16))
        rows["bfloat16"] = _row(_say(rounded, texts), exact)
    for name, levels in FOUR_BITS.items():
        rows[name] = _row(_say(_serve(Options(library=library), levels), texts), exact)
    print(f"{'':16} perplexity  answers right  first choice as exact")
    for name, row in rows.items():
        print(f"{name:16} {row['perplexity']:10.4f} {row['right']:13.1%} {row['agreement']:15.2%}")
    return rows


def _texts(per_kind: int) -> list[Text]:
    tokenizer = Tokenizer.from_file(str(EMBEDDED_MODEL / "tokenizer.json"))
    texts = []
    for question in held_out(per_kind):
        if not question.answers:  # a story: there is no one right answer
            continue
        before = tokenizer.encode(question.prompt, add_special_tokens=False).ids
        answer = tokenizer.encode(question.answers[0] + TURN_END, add_special_tokens=False).ids
        if len(before) + len(answer) <= _LONGEST:
            texts.append(Text((*before, *answer), len(before)))
    return texts


def _serve(options: Options, rounding: str | None = None) -> Served:
    """Return the embedded model, loaded anew; `rounding`: to 4 bits, by which levels."""
    config = ModelConfig()
    checkpoint = find_checkpoint(config, print)
    described = read_config(checkpoint, config)
    weights = read_weights(checkpoint.path)
    kept = (
        KeptWeights() if rounding is None else kept_weights(described, weights, rounding, (), experts=False)
    )
    model = load_model(checkpoint, config, described, weights, torch.device("cpu"), lambda _: None, kept)
    served = bring_up(model, options)
    print(served, served.weights, sep="\n")
    return served


def _say(served: Served, texts: list[Text]) -> list[Said]:
    runner = served.make_runner(blocks_for(_LONGEST))
    said = []
    for text in texts:
        table = SlotTable(slots=1, pages=blocks_for(_LONGEST))
        sequence = Sequence(_request(text))
        table.enter(sequence)
        table.extend(sequence, list(range(blocks_for(len(text.ids)))))
        logits = runner.run(pack(table, Decodes(), [Chunk(sequence, 0, len(text.ids))]))
        logprobs = logits[text.answer - 1 : -1].log_softmax(-1)
        right = torch.tensor(text.ids[text.answer :])
        said.append(Said(logprobs.gather(1, right[:, None])[:, 0], logprobs.argmax(1), right))
    return said


def _request(text: Text) -> CoreRequest:
    return CoreRequest(
        id="text",
        prompt_ids=text.ids,
        max_new_tokens=1,
        sampling=Sampling(),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=0,
        prompt_logprobs=True,
    )


def _row(said: list[Said], exact: list[Said]) -> dict[str, float]:
    logprobs = torch.cat([each.logprobs for each in said])
    agree = torch.cat([each.first == other.first for each, other in zip(said, exact, strict=True)])
    right = [torch.equal(each.first, each.right) for each in said]
    return {
        "perplexity": round(math.exp(-float(logprobs.double().mean())), 5),
        "right": round(sum(right) / len(right), 4),
        "agreement": round(float(agree.float().mean()), 5),
        "tokens": len(logprobs),
    }


if __name__ == "__main__":
    main()
