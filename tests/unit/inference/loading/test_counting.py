"""What a model holds, and a token is multiplied with, is known before its weights are read."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from transformers.pytorch_utils import Conv1D  # noqa: E402

from codegen.toys import toy_config  # noqa: E402
from inference.files.checkpoint import Weights  # noqa: E402
from inference.loading.classes import model_class, numberless  # noqa: E402
from inference.loading.counting import held_weights  # noqa: E402
from inference.models.weights import expert_weights  # noqa: E402
from inference.planning.described import describe_demand  # noqa: E402

NONE = Weights(floats=0, other_bytes=0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("family", "chosen"), [("qwen3_moe", 2), ("gpt_oss", 2), ("ernie4_5_moe", 2), ("mixtral", 2)]
)
def test_a_token_is_not_multiplied_with_experts_that_it_is_not_given_to(
    family: str, chosen: int, device: str
) -> None:
    config = toy_config(family)
    own = model_class(config)
    assert own is not None
    model = numberless(own, config)
    sizes = [weights.shape for each in model.modules() for weights in expert_weights(each).values()]
    idle = sum((count - min(chosen, count)) * n * k for count, n, k in sizes)
    found = held_weights(config, NONE, torch.device(device))
    assert found.idle == idle
    whole, sparse = (
        describe_demand(config, Weights(10**9, 0, idle=each), *3 * (torch.float32,)).parameters
        for each in (0, idle)
    )
    assert whole - sparse == idle


def test_a_token_is_multiplied_with_all_of_a_model_without_experts() -> None:
    assert held_weights(toy_config("llama"), NONE, torch.device("cpu")).idle == 0


def test_what_a_tokens_experts_compute_is_counted_as_the_kernels_lay_it_out() -> None:
    """An input and an output of each, and what is between its linears."""
    config = toy_config("qwen3_moe")
    found = held_weights(config, NONE, torch.device("cpu")).passing
    wide, inner = config.hidden_size, config.moe_intermediate_size
    apart = 2 * inner if inner % 32 else 0
    assert found == config.num_experts_per_tok * (2 * wide + inner + apart)
    assert held_weights(config, NONE, torch.device("cuda")).passing == 0
    assert held_weights(toy_config("llama"), NONE, torch.device("cpu")).passing == 0
    described = describe_demand(config, Weights(10**9, 0, passing=found), *3 * (torch.float32,))
    assert described.step_token_bytes == 4 * found


def test_linears_that_are_stored_turned_are_counted_as_linears() -> None:
    """GPT-2's, which are loaded in float32 whatever the files have, and packed as all others."""
    config = toy_config("gpt2")
    own = model_class(config)
    assert own is not None
    turned = sum(each.weight.numel() for each in numberless(own, config).modules() if type(each) is Conv1D)
    found = held_weights(config, NONE, torch.device("cpu"))
    assert found.turned == turned > 0
    assert found.matrices >= turned
    assert held_weights(toy_config("llama"), NONE, torch.device("cpu")).turned == 0
