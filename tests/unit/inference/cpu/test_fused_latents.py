"""Families whose heads attend to latents: in one call of the C extension as in their own code."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from inference.kernels.native import Library  # noqa: E402
from inference.levels.served import Level  # noqa: E402
from inference.models.anatomy import read_model  # noqa: E402
from inference.models.latent import find_latents  # noqa: E402
from inference.models.layers import OtherShape  # noqa: E402
from inference.models.mixtures import read_mixture  # noqa: E402
from inference.models.paged import use_paged_attention  # noqa: E402
from tests.unit.inference.cpu.fused import assert_same_bits, assert_says_the_same, serve  # noqa: E402
from tests.unit.inference.cpu.test_fused_forms import model_of  # noqa: E402

# Queries of the layer's input, and of fewer numbers; rotated as complex numbers, as neighbours, as halves
FAMILIES = "deepseek_v2 deepseek_v3 glm4_moe_lite minicpm3 youtu".split()


@pytest.mark.parametrize("family", FAMILIES)
def test_they_say_what_the_models_own_code_says(family: str, library: Library) -> None:
    assert_says_the_same(model_of(family), library)


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "minicpm3"])
@pytest.mark.parametrize("options", [{}, {"quantize": True}, {"round_inputs": True}], ids=str)
def test_bits_are_the_same_however_a_prompt_is_cut(
    family: str, options: dict[str, Any], library: Library
) -> None:
    assert_same_bits(model_of(family), library, (1, 33), **options)


@pytest.mark.parametrize("family", ["deepseek_v2", "minicpm3"])
def test_expanded_to_each_heads_keys_and_values_they_are_native(family: str, library: Library) -> None:
    served = serve(model_of(family), library, latents=False)
    assert served.level is Level.NATIVE
    assert served.reason is not None
    assert "its latents are expanded to each head's keys and values" in served.reason


def test_llamas_shape_alone_has_no_latents(library: Library) -> None:
    model = model_of("youtu")
    find_latents(model)
    probed = use_paged_attention(model)
    with pytest.raises(OtherShape, match="its heads attend to latents"):
        read_model(model, probed, torch.arange(3, 12).numpy(), 64, read_mixture, llamas=True)
