"""Train the embedded model from nothing: `python -m codegen.embedded.train --output DIR --minutes N --seed 0`."""

from __future__ import annotations

import argparse
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
PEAK, WARMUP, FLOOR = 0.0013, 20, 0.02  # learning rate, steps, share of the peak at the end
COOLDOWN = 0.95  # share of the time over which the rate falls
IGNORED = -100


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


def batches(tokenizer: Tokenizer, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
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


def optimizers(model: Llama) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices = [weight for weight in model.layers.parameters() if weight.ndim == 2]
    others = [weight for weight in model.parameters() if weight.ndim == 1]
    adam = [{"params": [model.embed_tokens.weight], "lr": PEAK}, {"params": others, "lr": PEAK}]
    return [
        torch.optim.Muon(matrices, lr=PEAK, momentum=0.95, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(adam, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def train(output: Path, minutes: float, seed: int, resume: Path | None) -> None:
    """Train until the time is up, saving the model every few minutes."""
    torch.manual_seed(seed)
    output.mkdir(parents=True, exist_ok=True)
    tokenizer = (
        Tokenizer.from_file(str(resume.parent / "tokenizer.json")) if resume else tokenizers_.train(seed)
    )
    tokenizers_.save(tokenizer, output)
    model = Llama(Shape())
    if resume:
        model.load_state_dict(torch.load(resume))
    print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters", flush=True)
    run(model, tokenizer, output, minutes * 60, seed)
    store(model, tokenizer, output)


def run(model: Llama, tokenizer: Tokenizer, output: Path, seconds: float, seed: int) -> None:
    """Run the loop: batch, loss, step, report."""
    solvers = optimizers(model)
    model.compile()
    peaks = [[group["lr"] for group in solver.param_groups] for solver in solvers]
    start = saved = time.monotonic()
    seen, mean = 0, 0.0
    for step, (tokens, numbers, targets) in enumerate(batches(tokenizer, seed)):
        elapsed = time.monotonic() - start
        if elapsed > seconds:
            break
        share = rate(elapsed / seconds, step)
        for solver, peak in zip(solvers, peaks, strict=True):
            for group, highest in zip(solver.param_groups, peak, strict=True):
                group["lr"] = highest * share
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.loss(tokens, numbers, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for solver in solvers:
            solver.step()
            solver.zero_grad()
        seen += tokens.numel()
        mean = loss.item() if step == 0 else 0.95 * mean + 0.05 * loss.item()
        if step % 20 == 0:
            print(
                f"step {step} loss {mean:.4f} tokens {seen:,} tokens/s {seen / (time.monotonic() - start):.0f} rate {share:.2f}",
                flush=True,
            )
        if time.monotonic() - saved > 180:
            store(model, tokenizer, output)
            saved = time.monotonic()


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
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    train(options.output, options.minutes, options.seed, options.resume)


if __name__ == "__main__":
    main()
