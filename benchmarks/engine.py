"""Measure the engine's tokens per second beside transformers' own `generate`, on the same model.

    python -m benchmarks.engine [MODEL_DIRECTORY] [--batch 1 8] [--tokens 64] [--threads 2]

Without a directory a random model of SmolLM2-135M's shape is made in a temporary one. Both sides
are greedy, in float32, and neither ends a text early; the ratio is ours to theirs, higher is better.
"""

from __future__ import annotations

from inference.environment import prepare_environment

prepare_environment()

import argparse  # noqa: E402
import json  # noqa: E402
import queue  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel  # noqa: E402

from inference.config import EngineConfig, ModelConfig  # noqa: E402
from inference.engine import TorchCore  # noqa: E402
from inference.types import CoreFailure, CoreRequest, Frame, LogprobsMode, Sampling  # noqa: E402

_SMOLLM2_135M = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "eos_token_id": None,
}
_ROUNDS = 3  # of each measurement; the best counts, as others may use the machine


@dataclass(frozen=True, slots=True)
class Load:
    """What both sides are asked for."""

    prompts: tuple[tuple[int, ...], ...]
    tokens: int

    @property
    def total(self) -> int:
        """Return how many tokens are generated."""
        return len(self.prompts) * self.tokens


def main() -> None:
    """Print one line for each batch size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.model:
            directory = _without_eos(arguments.model, Path(temporary))
        else:
            directory = _make_model(Path(temporary))
        for batch in arguments.batch:
            _compare(
                directory, _load(directory, batch, arguments.prompt, arguments.tokens), arguments.threads
            )


def _make_model(directory: Path) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(LlamaConfig(**_SMOLLM2_135M)).save_pretrained(directory)
    return directory


def _without_eos(model: Path, directory: Path) -> Path:
    """Return a directory with the model's weights, whose texts end at their length only."""
    for file in model.glob("*.safetensors*"):
        (directory / file.name).symlink_to(file.resolve())
    config = json.loads((model / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    return directory


def _load(directory: Path, batch: int, length: int, tokens: int) -> Load:
    vocabulary = _reference(directory).get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, (batch, length), generator=generator)
    return Load(tuple(map(tuple, ids.tolist())), tokens)


def _compare(directory: Path, load: Load, threads: int) -> None:
    model = _reference(directory)
    assert (
        model.generate(torch.tensor(load.prompts[:1]), max_new_tokens=2).shape[1] == len(load.prompts[0]) + 2
    )
    theirs = min(_transformers_seconds(model, load) for _ in range(_ROUNDS))
    del model
    core = TorchCore(EngineConfig(model=ModelConfig(model_id=str(directory)), threads=threads))
    core.load(print)
    frames: queue.Queue[Frame] = queue.Queue()
    core.start(frames.put)
    ours = min(_engine_seconds(core, frames, load) for _ in range(_ROUNDS))
    core.stop()
    print(
        f"batch {len(load.prompts):3d}: engine {load.total / ours:8.1f} tok/s, "
        f"transformers generate {load.total / theirs:8.1f} tok/s, ratio {theirs / ours:.2f}"
    )


def _reference(directory: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return model.eval()


def _transformers_seconds(model: PreTrainedModel, load: Load) -> float:
    ids = torch.tensor(load.prompts)
    started = time.perf_counter()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=load.tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return time.perf_counter() - started


def _engine_seconds(core: TorchCore, frames: queue.Queue[Frame], load: Load) -> float:
    """Return how long it takes until every request has had its last token, started all at once."""
    started = time.perf_counter()
    for index, prompt in enumerate(load.prompts):
        core.submit(_request(str(index), prompt, load.tokens))
    left = load.total
    while left:
        for output in frames.get().outputs:
            if isinstance(output, CoreFailure):
                raise RuntimeError(output.message)
            left -= 1
    return time.perf_counter() - started


def _request(id: str, prompt: tuple[int, ...], tokens: int) -> CoreRequest:
    return CoreRequest(
        id=id,
        prompt_ids=prompt,
        max_new_tokens=tokens,
        sampling=Sampling(),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=0,
        prompt_logprobs=False,
    )


if __name__ == "__main__":
    main()
