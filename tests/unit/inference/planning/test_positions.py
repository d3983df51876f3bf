from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import AutoConfig, PreTrainedConfig  # noqa: E402

from codegen.toys import prompts, toy_model  # noqa: E402
from inference.planning.positions import Positions, changing_length, first_position, positions_of  # noqa: E402


def described(stated: int, family: str = "llama", **members: Any) -> PreTrainedConfig:
    config: PreTrainedConfig = AutoConfig.for_model(family, max_position_embeddings=stated, **members)
    return config


def yarn(factor: float, original: int | None = None) -> dict[str, Any]:
    said = {} if original is None else {"original_max_position_embeddings": original}
    return {"rope_type": "yarn", "factor": factor, **said}


@pytest.mark.parametrize(
    ("stated", "rope", "usual", "most"),
    [
        (4096, {"rope_type": "default"}, 4096, 4096),
        (32768, yarn(4.0, 32768), 131_072, 131_072),  # Qwen2.5's recipe
        (40960, yarn(4.0, 32768), 131_072, 131_072),  # Qwen3's
        (131_072, yarn(4.0, 32768), 131_072, 131_072),  # already extended
        (163_840, yarn(40, 4096), 163_840, 163_840),  # DeepSeek V3
        (65536, yarn(2.0, 16384), 65536, 65536),  # states more than it was made for
        (8192, yarn(40, 4096), 8192, 163_840),  # raised on purpose, and not that far
        (32768, yarn(4.0), 131_072, 131_072),  # what isn't said is what is stated, as for transformers
        (32768, {"type": "yarn", "factor": 1.5, "original_max_position_embeddings": 32768}, 49152, 49152),
        (4096, {"rope_type": "linear", "factor": 4.0}, 4096, 16384),  # Vicuna 16k
        (131_072, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192}, 131_072, 131_072),
        (131_072, {"rope_type": "longrope", "short_factor": [1.0] * 64, "long_factor": [4.0] * 64,
                   "original_max_position_embeddings": 4096, "factor": 32.0}, 131_072, 131_072),
    ],
)  # fmt: skip
def test_texts_reach_as_far_as_the_rotation_was_made_for(
    stated: int, rope: dict[str, Any], usual: int, most: int
) -> None:
    rope = {"rope_theta": 10_000.0, **rope}
    assert positions_of(described(stated, rope_parameters=rope), stated) == Positions(usual, most)
    assert positions_of(described(stated, rope_scaling=rope), stated) == Positions(usual, most)


def test_dynamic_scaling_adds_nothing_and_that_is_said() -> None:
    found = positions_of(described(4096, rope_scaling={"rope_type": "dynamic", "factor": 4.0}), 4096)
    assert (found.usual, found.most) == (4096, 4096)
    assert "dynamic scaling" in found.note


def test_layers_that_are_not_scaled_keep_texts_from_reaching_further() -> None:
    for full in (yarn(4.0, 1024), {"rope_type": "linear", "factor": 8.0}):
        ropes = {
            "full_attention": {"rope_theta": 1e6, **full},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        }
        config = described(1024, "gemma3_text", rope_parameters=ropes)
        assert positions_of(config, 1024) == Positions(1024, 1024)


@pytest.mark.parametrize("stated", [None, 0, -1])
def test_model_without_positions_has_no_limit(stated: int | None) -> None:
    assert positions_of(AutoConfig.for_model("bloom"), stated) == Positions(None, None)


@pytest.mark.parametrize("stated", [514, 512])
def test_positions_before_the_first_are_none_of_a_texts(stated: int) -> None:
    config = described(stated, "roberta", pad_token_id=1)
    assert positions_of(config, stated) == Positions(stated - 2, stated - 2)
    growing = described(stated, "kosmos_2_5_text_model", pad_token_id=1)
    assert (first_position(growing), positions_of(growing, stated).usual) == (2, stated)


# All whose own code has a way to leave padding out, and some others
COUNTING = [
    "camembert", "data2vec-text", "kosmos-2.5", "roberta", "roberta-prelayernorm", "xlm-roberta",
    "xlm-roberta-xl", "xmod",
]  # fmt: skip


@pytest.mark.parametrize("family", [*COUNTING, "bert", "biogpt", "llama", "opt", "xglm"])
def test_positions_of_a_text_are_those_that_its_own_code_gives_it(family: str) -> None:
    model = toy_model(family)
    first = first_position(model.config.get_text_config())
    assert bool(first) == (family in COUNTING)
    ids = torch.tensor([prompts(9)[0]])
    placed = torch.arange(first, first + 9)[None]
    with torch.inference_mode():
        own = model(input_ids=ids, use_cache=False).logits
        found = model(input_ids=ids, position_ids=placed, use_cache=False).logits
    assert torch.equal(found, own)


LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "rope_theta": 10_000.0,
}


@pytest.mark.parametrize(
    ("family", "members", "length"),
    [
        ("llama", {}, None),
        ("llama", {"rope_parameters": {"rope_theta": 10_000.0, **yarn(4.0, 64)}}, None),
        ("llama", {"rope_parameters": {**LONG, "original_max_position_embeddings": 128}}, 128),
        ("llama", {"rope_scaling": {**LONG, "original_max_position_embeddings": 128}}, 128),
        ("llama", {"rope_parameters": LONG}, 256),
        ("phi3", {"rope_scaling": LONG, "original_max_position_embeddings": 64}, 64),
        (
            "gemma3_text",
            {
                "rope_parameters": {
                    "full_attention": {**LONG, "original_max_position_embeddings": 128},
                    "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
                }
            },
            128,
        ),
    ],
)
def test_length_at_which_rotations_change_is_found_where_it_stands(
    family: str, members: dict[str, Any], length: int | None
) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    if family == "gemma3_text":
        sizes["head_dim"] = 16
    assert changing_length(described(256, family, **sizes, **members)) == length
