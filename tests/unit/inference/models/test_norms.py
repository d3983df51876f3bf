from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import layer_norm  # noqa: E402
from transformers.models.cohere.modeling_cohere import CohereLayerNorm  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRMSNorm  # noqa: E402
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P  # noqa: E402
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm  # noqa: E402
from transformers.models.stablelm.modeling_stablelm import StableLmLayerNormPerHead  # noqa: E402

from inference.models.norms import read_norm  # noqa: E402
from inference.models.other_shape import OtherShape  # noqa: E402

SIZE, HEADS = 24, 3


def randomised(module: nn.Module) -> nn.Module:
    for at, parameter in enumerate(module.parameters()):
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(at))
    return module


def without_bias() -> nn.Module:
    norm = nn.LayerNorm(SIZE)
    norm.bias = None
    return norm


NORMS = {
    "weights and biases": (nn.LayerNorm(SIZE, eps=3e-5), 3e-5),
    "weights alone": (without_bias(), 1e-5),
    "weights alone, by code of its own": (CohereLayerNorm(SIZE, eps=2e-6), 2e-6),
    "weights less one": (NemotronLayerNorm1P(SIZE, eps=1e-4), 1e-4),
    "nothing": (OlmoLayerNorm(SIZE), 1e-5),
    "nothing, and another epsilon": (nn.LayerNorm(SIZE, eps=1e-3, elementwise_affine=False), 1e-3),
    "in bfloat16": (nn.LayerNorm(SIZE).bfloat16(), 1e-5),
}


@pytest.mark.parametrize(("module", "eps"), NORMS.values(), ids=NORMS.keys())
def test_what_a_layer_norm_computes_is_found(module: nn.Module, eps: float) -> None:
    found = read_norm(randomised(module), SIZE)
    assert (found.centred, found.eps) == (True, eps)
    x = torch.randn(5, SIZE, generator=torch.Generator().manual_seed(3))
    expected = module.float()(x)
    weight, bias = found.weights
    assert torch.allclose(layer_norm(x, [SIZE], weight, bias, eps), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("together", [False, True], ids=["rows of heads", "heads of rows"])
def test_weights_of_each_head_follow_each_other(together: bool) -> None:
    module = StableLmLayerNormPerHead(SIZE, HEADS) if together else CohereLayerNorm((HEADS, SIZE))
    found = read_norm(randomised(module), SIZE, HEADS)
    own = torch.cat([each.flatten() for each in module.parameters()])
    assert (found.centred, found.weights.shape) == (True, (2, HEADS * SIZE))
    assert torch.equal(found.weights, torch.stack([own, torch.zeros_like(own)]))


def test_a_norm_of_heads_may_have_one() -> None:
    module = randomised(StableLmLayerNormPerHead(SIZE, 1))
    found = read_norm(module, SIZE, 1)
    (own,) = module.parameters()
    assert found.centred
    assert torch.equal(found.weights, torch.stack([own, torch.zeros_like(own)]))


def test_a_root_mean_square_norm_is_no_layer_norm() -> None:
    norm = LlamaRMSNorm(SIZE)
    found = read_norm(randomised(norm), SIZE)
    assert (found.centred, found.weights.tolist()) == (False, norm.weight.tolist())


class Clipped(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp(max=1.0)


@pytest.mark.parametrize("module", [Clipped(SIZE), nn.Tanh(), nn.GroupNorm(3, 3), nn.Linear(SIZE, SIZE)])
def test_what_computes_something_else_is_refused(module: nn.Module) -> None:
    with pytest.raises(
        OtherShape, match=f"`{type(module).__name__}` is no root-mean-square norm, and no layer"
    ):
        read_norm(module, SIZE)
