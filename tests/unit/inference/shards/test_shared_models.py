"""Whole models in shards give the logits of their own code, computed here once more by transformers alone."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from inference.errors import ModelUnavailable  # noqa: E402
from inference.kernels.native import Library, open_library  # noqa: E402
from inference.kv_cache.blocks import PAGE  # noqa: E402
from inference.levels.served import Level  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.shards.group import Group  # noqa: E402
from inference.shards.runner import SharedRunner  # noqa: E402
from tests.unit.inference.level_logits import PROMPT, own_logits, served_logits  # noqa: E402
from tests.unit.inference.loading.test_level import FUSED  # noqa: E402
from tests.unit.inference.shards.groups import together  # noqa: E402
from tests.unit.inference.toy_models import toy  # noqa: E402

pytestmark = pytest.mark.skipif(open_library() is None, reason="the extension isn't built")
LONGEST = 256
HEADS = {"num_attention_heads": 8, "head_dim": 8}
# Where a layer isn't divided evenly, and where several shards have the same heads of keys
UNEVEN: list[tuple[int, dict[str, Any]]] = [
    (2, {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}),
    (3, {**HEADS, "num_key_value_heads": 4, "intermediate_size": 100}),
    (4, {**HEADS, "num_key_value_heads": 2}),
    (4, {**HEADS, "num_key_value_heads": 1, "vocab_size": 9}),
    (2, {**HEADS, "intermediate_size": 1024, "attention_bias": True, "mlp_bias": True}),
]


def shared_logits(
    name: str, count: int = 2, kind: str = "local", changes: dict[str, Any] | None = None, **options: Any
) -> tuple[list[Tensor], Tensor]:
    """Return what each shard has for PROMPT, computed in pieces, and what transformers has."""
    changes = changes or {}
    models = [toy(name, **changes) for _ in range(count)]  # one after the other: seeds are global
    vocabulary = models[0].config.vocab_size

    def work(group: Group, library: Library) -> Tensor:
        given = Options(library=library, group=group, max_total_tokens=LONGEST, **options)
        served = bring_up(models[group.share.rank], given)
        assert (served.level, served.exact) == (Level.FUSED, True)
        return served_logits(served, 7, vocabulary)

    prompt = tuple(each % vocabulary for each in PROMPT)
    return together(count, work, kind), own_logits(toy(name, **changes), prompt)


def check(found: list[Tensor], expected: Tensor, error: float = 1e-5) -> None:
    for each in found:
        assert torch.equal(each, found[0])
        assert float((each - expected).abs().max()) <= error * float(expected.abs().max())


@pytest.mark.parametrize(
    "name", sorted(FUSED - {"olmo2", "mixtral", "cohere2_moe", "falcon with one head of keys"})
)
def test_shards_of_a_family_give_its_logits(name: str) -> None:
    check(*shared_logits(name))


@pytest.mark.parametrize("name", ["hunyuan_v1_dense", "nanochat", "ministral3", "apertus", "hyperclovax"])
def test_so_do_those_of_families_with_forms_of_their_own(name: str) -> None:
    check(*shared_logits(name, changes={"head_dim": 16}))


@pytest.mark.parametrize(("count", "changes"), UNEVEN)
def test_a_layer_need_not_be_divided_evenly(count: int, changes: dict[str, Any]) -> None:
    check(*shared_logits("llama", count, changes=changes))


def test_what_each_shard_keeps_of_a_token_is_counted() -> None:
    models = [toy("llama", **HEADS, num_key_value_heads=2) for _ in range(4)]

    def work(group: Group, library: Library) -> int:
        options = Options(library=library, group=group, max_total_tokens=LONGEST)
        served = bring_up(models[group.share.rank], options)
        runner = served.make_runner(10)
        assert isinstance(runner, SharedRunner)
        kept = sum(array.nbytes for array in runner.arrays)
        assert served.kv_bytes == 4 * kept // (10 * PAGE)
        return served.kv_bytes

    own = 3 * 2 * 8 * 2 * 4  # layers, heads, numbers, keys and values, bytes
    assert together(4, work) == [2 * own] * 4


def test_shards_may_be_on_several_machines() -> None:
    check(*shared_logits("llama", 3, "net", {**HEADS, "num_key_value_heads": 4}))


@pytest.mark.parametrize(
    ("options", "error"), [({"quantize": True}, 0.2), ({"kv_dtype": torch.bfloat16}, 0.03)]
)
def test_what_is_rounded_is_rounded_in_shards_too(options: dict[str, Any], error: float) -> None:
    check(*shared_logits("llama", 2, **options), error=error)


@pytest.mark.parametrize(
    ("name", "count", "changes", "options", "why"),
    [
        ("olmo2", 2, {}, {}, "normalises what all heads ask for together"),
        ("llama", 3, {}, {}, "2 heads of keys and 4 of queries"),
        ("llama4_text", 2, {}, {}, "its layers can't be fused"),
        ("bitnet", 2, {}, {}, "norms between its linears"),
        ("afmoe", 2, {"num_dense_layers": 3, "head_dim": 16}, {}, "gates aren't divided"),
        ("cohere2_moe", 2, {}, {}, "has no linears"),
        ("mixtral", 2, {}, {}, "`MixtralSparseMoeBlock` has no linears"),
        ("llama", 2, {}, {"fuse": False}, "fusing layers is switched off"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_why(
    name: str, count: int, changes: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ModelUnavailable, match=f"over {count} shards.*({why}).*without --num-shard"):
        shared_logits(name, count, changes=changes, **options)
