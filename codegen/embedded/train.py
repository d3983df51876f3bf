"""Train the embedded model from nothing: `python -m codegen.embedded.train --output DIR --minutes N --seed 0`."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # before torch starts its threads: spinning would starve the machine

import torch
from tokenizers import Tokenizer
from torch import Tensor

from codegen.embedded import tokenizer as tokenizers_
from codegen.embedded.chat import END_OF_TEXT, TURN_END, Segment
from codegen.embedded.corpus import documents
from codegen.embedded.model import Llama, Shape, save

ROW = 512  # tokens
ROWS = 8
PEAK, WARMUP, FLOOR = 0.003, 50, 0.02  # learning rate, steps, share of the peak at the end
COOLDOWN = 0.9  # share of the time over which the rate falls
SAVE_EVERY = 180  # seconds
IGNORED = -100


Batch = tuple[Tensor, Tensor, Tensor]  # tokens, document numbers, targets: (rows, row) each


@dataclass(frozen=True, slots=True)
class Plan:
    """What to train, for how long, and from where."""

    output: Path
    seconds: float
    seed: int
    peak: float
    resume: Path | None


@dataclass(slots=True)
class Row:
    """Documents laid end to end."""

    tokens: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    count: int = 0

    def add(self, tokens: list[int], written: list[bool]) -> None:
        """Append a document; each target is the next token, where the model has to write it."""
        self.count += 1
        self.tokens += tokens[:-1]
        self.targets += [
            token if wanted else IGNORED for token, wanted in zip(tokens[1:], written[1:], strict=True)
        ]
        self.numbers += [self.count] * (len(tokens) - 1)

    def padded(self) -> tuple[list[int], list[int], list[int]]:
        """Fill the row up with a document that teaches nothing."""
        gap = ROW - len(self.tokens)
        return self.tokens + [0] * gap, self.targets + [IGNORED] * gap, self.numbers + [0] * gap


def encode(tokenizer: Tokenizer, segments: list[Segment]) -> tuple[list[int], list[bool]]:
    """Turn a document into tokens and, for each, whether the model has to write it."""
    tokens: list[int] = []
    written: list[bool] = []
    for text, wanted in segments:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        tokens += ids
        written += [wanted] * len(ids)
    return tokens, written


def batches(tokenizer: Tokenizer, seed: int) -> Iterator[Batch]:
    """Pack documents into rows, each into the first open row with room, and yield full batches."""
    stream = documents(seed)
    rows = [Row() for _ in range(ROWS)]
    while True:
        tokens, written = encode(tokenizer, next(stream))
        if not 2 <= len(tokens) <= ROW or not any(written[1:]):
            continue
        open_row = next((row for row in rows if len(row.tokens) + len(tokens) <= ROW), None)
        if open_row is None:
            columns = zip(*(row.padded() for row in rows), strict=True)
            inputs, targets, numbers = (torch.tensor(column) for column in columns)
            yield inputs, numbers, targets
            rows = [Row() for _ in range(ROWS)]
            open_row = rows[0]
        open_row.add(tokens, written)


def rate(done: float, step: int) -> float:
    """The learning rate's share of its peak: warm up, hold, then fall in a straight line."""
    falling = min(1.0, max(FLOOR, (1 - done) / COOLDOWN))
    return min(falling, (step + 1) / WARMUP)


def optimizers(model: Llama, peak: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices = [weight for weight in model.layers.parameters() if weight.ndim == 2]
    norms = [weight for weight in model.parameters() if weight.ndim == 1]
    return [
        torch.optim.Muon(matrices, lr=peak, momentum=0.95, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(
            [model.embed_tokens.weight, *norms], lr=peak, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        ),
    ]


def train(plan: Plan) -> None:
    """Train until the time is up, saving the model every few minutes."""
    torch.manual_seed(plan.seed)
    plan.output.mkdir(parents=True, exist_ok=True)
    model = Llama(Shape())
    if plan.resume:
        tokenizer = Tokenizer.from_file(str(plan.resume.parent / "tokenizer.json"))
        model.load_state_dict(torch.load(plan.resume))
    else:
        tokenizer = tokenizers_.train(plan.seed)
    tokenizers_.save(tokenizer, plan.output)
    print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters", flush=True)
    run(model, tokenizer, plan)
    store(model, tokenizer, plan.output)


def run(model: Llama, tokenizer: Tokenizer, plan: Plan) -> None:
    """Run the loop: batch, step, report, save."""
    solvers = optimizers(model, plan.peak)
    model.compile()
    start = saved = time.monotonic()
    seen, mean = 0, math.log(model.shape.vocab_size)
    for step, batch in enumerate(batches(tokenizer, plan.seed)):
        elapsed = time.monotonic() - start
        if elapsed > plan.seconds:
            break
        mean += 0.05 * (advance(model, solvers, batch, plan.peak * rate(elapsed / plan.seconds, step)) - mean)
        seen += batch[0].numel()
        if step % 20 == 0:
            print(f"{elapsed:.0f} s, step {step}, loss {mean:.4f}, {seen:,} tokens", flush=True)
        if time.monotonic() - saved > SAVE_EVERY:
            store(model, tokenizer, plan.output)
            saved = time.monotonic()


def advance(model: Llama, solvers: list[torch.optim.Optimizer], batch: Batch, learning_rate: float) -> float:
    """Take one step and return the loss before it."""
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(*batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for solver in solvers:
        for group in solver.param_groups:
            group["lr"] = learning_rate
        solver.step()
        solver.zero_grad()
    return loss.item()


def store(model: Llama, tokenizer: Tokenizer, output: Path) -> None:
    """Write a checkpoint that can be served, and one that training can go on from."""
    turn_end, text_end = (tokenizer.encode(token).ids[0] for token in (TURN_END, END_OF_TEXT))
    save(model, output, [turn_end, text_end], text_end)
    torch.save(model.state_dict(), output / "state.pt")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, help="a state.pt to go on from")
    parser.add_argument("--peak", type=float, default=PEAK, help="the highest learning rate")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    train(Plan(options.output, options.minutes * 60, options.seed, options.peak, options.resume))


if __name__ == "__main__":
    main()
