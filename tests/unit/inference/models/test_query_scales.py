"""What queries are multiplied by, position by position, is found far behind what prompts of proofs reach."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402
from transformers.models.ministral3 import modeling_ministral3  # noqa: E402

from inference.models.joined import Linears  # noqa: E402
from inference.models.other_shape import OtherShape  # noqa: E402
from inference.models.paged import use_paged_attention  # noqa: E402
from inference.models.query_scales import find_query_scales  # noqa: E402
from tests.unit.inference.toy_models import toy  # noqa: E402

torch.set_num_threads(1)
NAMES = ("q_proj", "k_proj", "v_proj")


def ministral(step: int = 64, strength: float = 0.1, **changes: Any) -> PreTrainedModel:
    rope = {
        "rope_type": "yarn",
        "factor": 16.0,
        "rope_theta": 1e6,
        "original_max_position_embeddings": step,
        "llama_4_scaling_beta": strength,
    }
    return toy("ministral3", num_hidden_layers=1, head_dim=16, rope_parameters=rope, **changes)


def scales(model: PreTrainedModel, positions: int) -> list[Tensor]:
    linears = {attention: Linears(attention, NAMES) for attention in use_paged_attention(model)}
    return list(find_query_scales(model, linears, positions).values())


@settings(max_examples=15, deadline=None)
@given(
    step=st.integers(2, 5000),
    strength=st.floats(0.05, 2.0),
    steps=st.integers(1, 40),
    more=st.integers(1, 100),
)
def test_they_are_those_of_the_models_own_code(step: int, strength: float, steps: int, more: int) -> None:
    positions = step * steps + more
    (found,) = scales(ministral(step, strength), positions)
    expected = modeling_ministral3.get_llama_4_attn_scale(torch.arange(positions)[None], strength, step)
    assert torch.equal(found, expected.flatten())


def test_where_no_text_comes_to_them_there_are_none() -> None:
    assert scales(ministral(64), 64) == []
    assert scales(toy("llama"), 10_000) == []


def test_other_rules_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(positions: Tensor, *_: Any) -> Tensor:
        return (1 + positions / 512).sqrt()[:, None, :, None]

    monkeypatch.setattr(modeling_ministral3, "get_llama_4_attn_scale", slowly)
    with pytest.raises(OtherShape, match="by an unknown rule"):
        scales(ministral(), 1000)


def test_keys_that_are_multiplied_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own = modeling_ministral3.apply_rotary_pos_emb

    def greater(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        query, key = own(query, key, cos, sin)
        return query, key * (1 + torch.arange(key.shape[2]) / 100)[None, None, :, None]

    monkeypatch.setattr(modeling_ministral3, "apply_rotary_pos_emb", greater)
    with pytest.raises(OtherShape, match="its keys are multiplied"):
        scales(ministral(), 1000)
