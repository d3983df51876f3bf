"""The models that the benchmark measures are drawn; they must be such that the engine takes them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from benchmarks.gpu.correct import _apart  # noqa: E402
from benchmarks.gpu.driving import TooSlow, _refuse_slowest  # noqa: E402
from benchmarks.gpu.models import SHAPES, HybridShape, Shape, make_model  # noqa: E402
from inference.gpu.ops import torch_ops  # noqa: E402
from inference.levels import proof  # noqa: E402
from inference.levels.served import Level  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.types import ModelInfo  # noqa: E402

HIDDEN = 256


def narrow(name: str) -> Shape:
    """Return a shape as deep as the real one, whose layers pass on as much of what they are given."""
    config = SHAPES[name].config
    spread = config["initializer_range"] * (config["hidden_size"] / HIDDEN) ** 0.5
    inner = config["intermediate_size"] * HIDDEN // config["hidden_size"]
    sizes = {
        "vocab_size": 1024,
        "hidden_size": HIDDEN,
        "intermediate_size": inner,
        "initializer_range": spread,
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    if "linear_num_key_heads" in config:
        heads |= {"linear_num_key_heads": 2, "linear_num_value_heads": 2}  # a key for each value, as there
    return Shape(SHAPES[name].kind, {**config, **sizes, **heads})


@pytest.mark.parametrize("name", SHAPES)
def test_deep_models_of_random_weights_reach_the_best_level_in_16_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "_SMALL", 0)  # prompts as for models of the real size
    model = make_model(narrow(name), torch.device("cpu"), torch.bfloat16)
    served = bring_up(model, Options(library=None, ops=torch_ops(), dtype=torch.bfloat16))
    hybrid = isinstance(SHAPES[name], HybridShape)  # its states' layers aren't fused with what is around them
    assert served.level is (Level.PAGED_MERGED if hybrid else Level.FUSED), served
    assert served.verdict.error < (0.1 if hybrid else 0.03)  # whose own code is off by 0.06, and by 0.02


def served_at(level: str) -> ModelInfo:
    return ModelInfo(
        id="", sha=None, pipeline_tag=None, dtype="", device_type="cuda", max_input_tokens=1,
        max_total_tokens=2, max_batch_prefill_tokens=1, max_batch_total_tokens=2, level=level,
        eos_token_ids=(), vocabulary_size=1, deterministic=False, step_seconds=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("level", ["sequential", "uncached: its layers can't be fused"])
def test_levels_without_batches_are_not_measured(level: str) -> None:
    _refuse_slowest(served_at("paged+merged: its layers can't be fused"))
    with pytest.raises(TooSlow, match=f"one sequence at a time, at level {level}"):
        _refuse_slowest(served_at(level))


def test_where_texts_come_apart_is_said() -> None:
    found, expected = [[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[1, 2, 3], [4, 0, 0], [7, 8, 1]]
    assert _apart(found, expected) == (
        "2 of 3; 17 tokens of prompt: from 1 on, 5 instead of 0; "
        "33 tokens of prompt: from 2 on, 9 instead of 1"
    )  # fmt: skip
