"""Toys run by the engine: alone, and all at once with their prompts in pieces, held against transformers."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from codegen.toys import generate, generate_whole, prompts
from inference.config import EngineConfig, ModelConfig
from inference.engine.engine import TorchCore
from inference.types import CoreFailure, CoreRequest, Frame, LogprobsMode, ModelInfo, Sampling

LOG = logging.getLogger(__name__)

_LENGTHS = (5, 90, 23, 1)  # of the prompts: below and above what windows and indexers see
_TOKENS = 16
_STEP_TOKENS = 16  # so that long prompts are computed in pieces
_SECONDS = 120  # until a silent engine is given up

Texts = list[list[int]] | None
Oracle = Callable[[PreTrainedModel, tuple[int, ...], int], list[int]]
Said = list[tuple[int, float]]  # tokens of one text, with their log-probabilities


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a toy was served."""

    level: str
    reason: str  # why not at a better one
    right: bool  # greedy text is that of the model's own `forward`, computed on the whole text for each token
    as_generated: bool  # it is that of transformers' `generate`, too
    exact: bool  # tokens and log-probabilities have the same bits alone and in a batch
    promised: bool  # that was said when it was loaded


def run_toy(model: PreTrainedModel, directory: Path) -> Outcome:
    """Serve a toy that was saved in a directory; raises whatever loading it, or a request, does."""
    core = TorchCore(_config(directory))
    info: ModelInfo = core.load(LOG.debug)
    frames: queue.Queue[Frame] = queue.Queue()
    core.start(frames.put)
    try:
        wanted = _requests()
        alone = {each.id: text for each in wanted for text in _texts(core, frames, [each]).values()}
        together = _texts(core, frames, reversed(wanted))
    finally:
        core.stop()
    level, _, reason = info.level.partition(": ")
    found = [_greedy(run) for run in (alone, together)]
    right, as_generated = ([_oracle(model, own)] * 2 == found for own in (generate_whole, generate))
    return Outcome(level, reason, right, as_generated, alone == together, info.deterministic)


def _config(directory: Path) -> EngineConfig:
    model = ModelConfig(model_id=str(directory))
    return EngineConfig(
        model=model,
        threads=1,
        separate_process=False,
        max_batch_prefill_tokens=_STEP_TOKENS,
        max_batch_size=8,
    )


def _requests() -> list[CoreRequest]:
    greedy = [_request(f"greedy {at}", prompt, Sampling()) for at, prompt in enumerate(prompts(*_LENGTHS))]
    seeded = [
        _request(f"seeded {at}", prompt, Sampling(sample=True, seed=at, temperature=0.9, top_p=0.95))
        for at, prompt in enumerate(prompts(*_LENGTHS))
    ]
    return greedy + seeded


def _request(id: str, prompt: tuple[int, ...], sampling: Sampling) -> CoreRequest:
    return CoreRequest(
        id=id,
        prompt_ids=prompt,
        max_new_tokens=_TOKENS,
        sampling=sampling,
        logprobs=LogprobsMode.RAW,
        top_n_tokens=0,
        prompt_logprobs=False,
        salt=id,  # what one run left in the prefix cache would spare the other its pieces
    )


def _texts(core: TorchCore, frames: queue.Queue[Frame], requests: Iterable[CoreRequest]) -> dict[str, Said]:
    """Return what the engine says to requests that come all at once; raises if one fails."""
    texts: dict[str, Said] = {}
    for request in requests:
        texts[request.id] = []
        core.submit(request)
    left = len(texts)
    while left:
        for output in frames.get(timeout=_SECONDS).outputs:
            if isinstance(output, CoreFailure):
                raise RuntimeError(output.message)
            texts[output.id].append((output.token_id, output.logprob))
            left -= output.finish is not None
    return texts


def _greedy(texts: dict[str, Said]) -> list[list[int]]:
    return [[token for token, _ in texts[f"greedy {at}"]] for at in range(len(_LENGTHS))]


def _oracle(model: PreTrainedModel, own: Oracle) -> Texts:
    """Return what transformers says, None where it raises: some families can't generate in a simple way."""
    try:
        return [own(model, prompt, _TOKENS) for prompt in prompts(*_LENGTHS)]
    except Exception as error:
        LOG.info("%s fails: %s", own.__name__, error)
        return None
