"""Merged linears whose outputs are in any order, as families of models have them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch import dtype as Dtype  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

from inference.models.attending import ATTENTION, attend_by, attending_by, install, installed  # noqa: E402
from inference.models.joined import Linears  # noqa: E402
from inference.models.merged_qkv import Layout, read_layouts  # noqa: E402
from inference.models.other_shape import OtherShape  # noqa: E402
from inference.models.paged import use_paged_attention  # noqa: E402
from tests.unit.inference.toy_models import toy  # noqa: E402


def layouts(model: PreTrainedModel, *names: str) -> list[Layout]:
    linears = {attention: Linears(attention, names) for attention in use_paged_attention(model)}
    found = read_layouts(model, linears)
    assert found.keys() == linears.keys()
    return [found[attention] for attention in linears]


def heads_of(order: Tensor | None, dim: int) -> list[int]:
    """Return the places of whole heads in the linear."""
    assert order is not None
    heads = order.unflatten(0, (-1, dim))
    assert torch.equal(heads, heads[:, :1] + torch.arange(dim))
    return (heads[:, 0] // dim).tolist()


THREE = [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]  # queries, keys and values of four heads
GROUPS = [0, 1, 4, 5, 2, 6, 3, 7]  # two heads of queries, their key, their value


@pytest.mark.parametrize(
    ("family", "name", "heads"),
    [
        ("gpt_neox", "query_key_value", THREE),
        ("bloom", "query_key_value", THREE),
        ("persimmon", "query_key_value", THREE),  # whose queries and keys are normalised
        ("gpt_bigcode", "c_attn", THREE),
        ("falcon", "query_key_value", GROUPS),
    ],
)
def test_heads_are_found_where_they_are(family: str, name: str, heads: list[int]) -> None:
    for found in layouts(toy(family), name):
        assert (heads_of(found.order, 16), found.factor) == (heads, 1.0)


@pytest.mark.parametrize(("family", "name"), [("phi3", "qkv_proj"), ("gpt2", "c_attn"), ("mpt", "Wqkv")])
def test_what_is_in_order_stays_so(family: str, name: str) -> None:
    assert [found.order for found in layouts(toy(family), name)] == [None] * 3


def test_what_queries_are_multiplied_by_is_found() -> None:
    names = ("q_proj", "k_proj", "v_proj")
    assert [(each.order, each.factor) for each in layouts(toy("opt"), *names)] == [(None, 0.25)] * 3
    assert [(each.order, each.factor) for each in layouts(toy("llama"), *names)] == [(None, 1.0)] * 3


def test_an_order_of_more_outputs_than_one_digit_says() -> None:
    model = toy("gpt_neox", hidden_size=512)
    (found, *_) = layouts(model, "query_key_value")
    assert heads_of(found.order, 128) == THREE


def test_in_16_bits_the_order_is_the_same() -> None:
    assert heads_of(layouts(toy("gpt_neox").bfloat16(), "query_key_value")[0].order, 16) == THREE


@pytest.mark.parametrize("family", ["olmo", "olmoe"])
@pytest.mark.parametrize("clip", [0.5, 8.0, 300.0])
def test_what_is_cut_off_is_refused_however_great(family: str, clip: float) -> None:
    model = toy(family, clip_qkv=clip)
    linears = {each: Linears(each, ("q_proj", "k_proj", "v_proj")) for each in use_paged_attention(model)}
    with pytest.raises(OtherShape, match="its queries, keys or values are clipped"):
        read_layouts(model, linears)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("olmo", ("q_proj", "k_proj", "v_proj")),
        ("olmoe", ("q_proj", "k_proj", "v_proj")),  # with norms
        ("opt", ("q_proj", "k_proj", "v_proj")),  # with a factor
        ("bloom", ("query_key_value",)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_all_passed_on_is_taken(family: str, names: tuple[str, ...], dtype: Dtype) -> None:
    model = toy(family).to(dtype)
    read_layouts(model, {each: Linears(each, names) for each in use_paged_attention(model)})


def test_the_model_is_as_it_was_before() -> None:
    model = toy("gpt_neox")
    attention = next(iter(use_paged_attention(model)))
    layer = type("Layer", (), {})()
    install(attention, layer)
    attend_by(model, "eager")
    read_layouts(model, {attention: Linears(attention, ("query_key_value",))})
    assert attending_by(model) == "eager" != ATTENTION
    assert installed(attention) is layer
    assert [installed(each) for each in model.modules() if each is not attention] == [None] * (
        len(list(model.modules())) - 1
    )
    assert not any(module._forward_hooks for module in model.modules() if isinstance(module, nn.Module))
