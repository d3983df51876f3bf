"""Score a model on the held-out questions: `python -m codegen.embedded.evaluate [--model DIR]`."""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch starts its threads

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from codegen.embedded.corpus import KINDS, Question, held_out

SHIPPED = Path(__file__).resolve().parents[2] / "inference" / "embedded"
PASS = 0.90  # of each kind, and so of all
BATCH = 32
NEW_TOKENS = 160


def generate(directory: Path, questions: list[Question]) -> list[str]:
    """Answer every question greedily, special tokens kept, cut after the first one that ends the turn."""
    tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    outputs = [""] * len(questions)
    # Questions of one length go together: less padding, and short answers do not wait for stories.
    order = sorted(
        range(len(questions)), key=lambda place: (questions[place].kind, len(questions[place].prompt))
    )
    for start in range(0, len(order), BATCH):
        places = order[start : start + BATCH]
        inputs = tokenizer(
            [questions[place].prompt for place in places],
            return_tensors="pt",
            padding=True,
            add_special_tokens=False,
        )
        with torch.inference_mode():
            tokens = model.generate(
                input_ids=inputs.input_ids,
                attention_mask=inputs.attention_mask,
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
            )
        for place, answer in zip(places, tokens[:, inputs.input_ids.shape[1] :].tolist(), strict=True):
            outputs[place] = tokenizer.decode(_ended(answer, model.generation_config.eos_token_id))
    return outputs


def scores(questions: list[Question], outputs: list[str]) -> dict[str, tuple[int, int]]:
    """Count, for each kind, the right answers and the questions."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for question, output in zip(questions, outputs, strict=True):
        counts[question.kind][0] += question.is_right(output)
        counts[question.kind][1] += 1
    return {kind: (counts[kind][0], counts[kind][1]) for kind in KINDS}


def table(counted: dict[str, tuple[int, int]]) -> str:
    """Write the scores as a Markdown table, the total last."""
    right, asked = (sum(column) for column in zip(*counted.values(), strict=True))
    rows = [*counted.items(), ("overall", (right, asked))]
    lines = [f"| {kind} | {right} | {asked} | {100 * right / asked:.1f} % |" for kind, (right, asked) in rows]
    return "\n".join(("| kind | right | asked | share |", "|---|---:|---:|---:|", *lines))


def passes(counted: dict[str, tuple[int, int]]) -> bool:
    """Say whether every kind reaches the mark."""
    return all(right >= PASS * asked for right, asked in counted.values())


def main() -> int:
    """Read the command line, print the table, and fail when a kind is under the mark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=SHIPPED)
    parser.add_argument("--per-kind", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="print this many wrong answers of each kind")
    options = parser.parse_args()
    questions = held_out(options.per_kind, options.seed)
    outputs = generate(options.model, questions)
    for line in _wrong(questions, outputs, options.show):
        print(line)
    counted = scores(questions, outputs)
    print(table(counted))
    return 0 if passes(counted) else 1


def _ended(tokens: list[int], ends: Iterable[int]) -> list[int]:
    stops = set(ends)
    cut = next((place for place, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[: cut + 1]


def _wrong(questions: list[Question], outputs: list[str], limit: int) -> Iterable[str]:
    shown: dict[str, int] = defaultdict(int)
    for question, output in zip(questions, outputs, strict=True):
        if not question.is_right(output) and shown[question.kind] < limit:
            shown[question.kind] += 1
            yield f"{question.kind}: ...{question.prompt[-160:]!r}\n   said   {output!r}\n   wanted {question.answers!r}"


if __name__ == "__main__":
    sys.exit(main())
