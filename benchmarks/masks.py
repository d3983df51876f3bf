"""Measure what grammars cost the engine's steps, with the embedded model.

    python -m benchmarks.masks [--batch 1 8 32] [--tokens 96] [--threads 2]

Each batch runs three times: without grammars, half of it and all of it under a JSON Schema. Then seven
texts without one run beside matchers that burn a processor for each mask. Draws are at random and no
text ends early; the best of three rounds counts, as others may use the machine.
"""

from __future__ import annotations

from inference.environment import prepare_environment

prepare_environment()

import argparse  # noqa: E402
import hashlib  # noqa: E402
import json  # noqa: E402
import queue  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402

import torch  # noqa: E402

from inference.config import EMBEDDED_MODEL, EngineConfig, ModelConfig  # noqa: E402
from inference.engine.engine import TorchCore  # noqa: E402
from inference.grammar.build import build  # noqa: E402
from inference.grammar.masks import Mask  # noqa: E402
from inference.grammar.vocabulary import GrammarVocabulary  # noqa: E402
from inference.grammar_limits import GrammarLimits  # noqa: E402
from inference.text.files import ModelFiles  # noqa: E402
from inference.text.tokenizer import load_tokenizer  # noqa: E402
from inference.types import (  # noqa: E402
    CompiledGrammar,
    CoreFailure,
    CoreOutput,
    CoreRequest,
    Frame,
    Grammar,
    GrammarKind,
    LogprobsMode,
    Sampling,
)

_SCHEMA = {  # of a list longer than any text here
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
            "at": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
        },
        "required": ["name", "tags", "at"],
    },
}
_ROUNDS = 3
_OTHERS = 7  # texts beside a slow matcher


@dataclass(slots=True)
class Round:
    """What was seen of one round: seconds of each step that generated tokens only."""

    forward: list[float] = field(default_factory=list)
    sample: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    parked: int = 0  # tokens that came a step late
    seconds: float = 0.0

    def line(self) -> str:
        """Return the medians in milliseconds."""
        forward, sample, whole = (
            1e3 * statistics.median(each) for each in (self.forward, self.sample, self.whole)
        )
        slowest = 1e3 * sorted(self.whole)[int(len(self.whole) * 0.99)]
        return (
            f"step {whole:6.2f} ms (forward {forward:6.2f}, sampling {sample:5.2f}; p99 {slowest:6.2f}), "
            f"tokens late {self.parked}"
        )


class Burning:
    """A grammar that allows everything and works as long as it is told to for each mask, without the GIL."""

    finished = False
    error = None

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def start(self) -> Burning:
        """Return itself: it keeps nothing."""
        return self

    def accept(self, token_id: int) -> bool:
        """Allow the token."""
        return True

    def fill_mask(self, mask: Mask) -> None:
        """Burn, and allow everything."""
        hashlib.pbkdf2_hmac("sha256", b"burn", b"salt", self._rounds)
        mask[:] = 2**32 - 1


def main() -> None:
    """Print one line for each mixture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    core = TorchCore(EngineConfig(model=ModelConfig(), threads=arguments.threads))
    eos = core.load(print).eos_token_ids
    frames: queue.Queue[Frame] = queue.Queue()
    core.start(frames.put)
    schema = _compiled(eos)
    _run(core, frames, [schema] * 2, eos, arguments.tokens)  # warms both up
    for batch in arguments.batch:
        for bound in sorted({0, batch // 2, batch}):
            grammars = [schema] * bound + [None] * (batch - bound)
            best = _best(core, frames, grammars, eos, arguments.tokens)
            print(f"batch {batch:3d}, grammars {bound:3d}:       {best.line()}")
    for slow, milliseconds in ((0, 0), (1, 200), (4, 200), (8, 20)):
        burning: list[CompiledGrammar | None] = [Burning(_rounds_for(milliseconds))] * slow
        best = _best(core, frames, [None] * _OTHERS, eos, arguments.tokens, burning)
        print(f"{_OTHERS} beside {slow} x {milliseconds:3d} ms a mask: {best.line()}")
    core.stop()


def _compiled(eos: tuple[int, ...]) -> CompiledGrammar:
    tokenizer = load_tokenizer(ModelFiles(EMBEDDED_MODEL), ModelConfig())
    token_bytes = tokenizer.token_bytes()
    assert token_bytes is not None
    vocabulary = GrammarVocabulary(token_bytes, tokenizer.special_ids, eos)
    grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(_SCHEMA))
    return build(vocabulary, grammar, GrammarLimits())


def _rounds_for(milliseconds: int) -> int:
    """Return how many rounds of hashing take so long on this machine."""
    started = time.perf_counter()
    hashlib.pbkdf2_hmac("sha256", b"burn", b"salt", 20_000)
    return max(1, int(milliseconds / 1e3 * 20_000 / (time.perf_counter() - started)))


def _best(
    core: TorchCore,
    frames: queue.Queue[Frame],
    grammars: list[CompiledGrammar | None],
    eos: tuple[int, ...],
    tokens: int,
    burning: Sequence[CompiledGrammar | None] = (),
) -> Round:
    rounds = [_run(core, frames, grammars, eos, tokens, burning) for _ in range(_ROUNDS)]
    return min(rounds, key=lambda each: each.seconds)


def _run(
    core: TorchCore,
    frames: queue.Queue[Frame],
    grammars: list[CompiledGrammar | None],
    eos: tuple[int, ...],
    tokens: int,
    burning: Sequence[CompiledGrammar | None] = (),
) -> Round:
    """Run one text for each of `grammars` to its length beside `burning` ones, which are then aborted."""
    measured = {str(at) for at in range(len(grammars))}
    for at, grammar in enumerate([*grammars, *burning]):
        core.submit(_request(str(at), grammar, eos, tokens if str(at) in measured else 900))
    found, left = Round(), len(measured)
    started = last = time.perf_counter()
    while left:
        frame = frames.get()
        now = time.perf_counter()
        ours = [output for output in frame.outputs if output.id in measured]
        if any(isinstance(output, CoreFailure) for output in ours):
            raise RuntimeError(str(ours))
        if ours and frame.stats is not None and not frame.stats.prefill_tokens:
            found.forward.append(frame.stats.forward_seconds)
            found.sample.append(frame.stats.sample_seconds)
            found.whole.append(now - last)
            found.parked += left - len(ours)
        left -= sum(isinstance(output, CoreOutput) and output.finish is not None for output in ours)
        last = now
    found.seconds = time.perf_counter() - started
    _abort(core, frames, range(len(measured), len(measured) + len(burning)))
    return found


def _abort(core: TorchCore, frames: queue.Queue[Frame], ids: range) -> None:
    for at in ids:
        core.abort(str(at))
    if ids:
        time.sleep(0.5)  # masks that are being computed end
    while not frames.empty():
        frames.get()


def _request(id: str, grammar: CompiledGrammar | None, eos: tuple[int, ...], tokens: int) -> CoreRequest:
    return CoreRequest(
        id=id,
        prompt_ids=tuple(range(10, 42)),
        max_new_tokens=tokens,
        ignore_eos=True,
        sampling=Sampling(
            sample=True, seed=int(id), logit_bias=tuple((token, -100.0) for token in sorted(eos))
        ),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=0,
        prompt_logprobs=False,
        grammar=grammar,
    )


if __name__ == "__main__":
    main()
