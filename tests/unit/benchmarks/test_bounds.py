from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.limits import Limits
from benchmarks.serving.bounds import PRECISIONS, Precision, Size, bound
from benchmarks.serving.models import SHAPES, Shape
from benchmarks.serving.servers import Group
from benchmarks.serving.workloads import WORKLOADS, Workload

SHAPE = Shape("llama", "smollm", "nothing", {
    "vocab_size": 10, "hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 1,
})  # fmt: skip
SIZE = Size(body=3 * (4 * 4 + 2 * 4 * 2 + 4 * 4 + 3 * 4 * 8), head=40, kv=12, attention=48)
FLOATS = Precision(2, 2, ("float_flops",), ("float_flops",))
LIMITS = Limits(read_bytes=100, float_flops=1000, bfloat16_flops=2000, int8_flops=4000)
SMALL = Workload(name="small", clients=2, requests=4, own=3, output=5)


def test_a_shapes_weights_are_counted() -> None:
    assert Size.of(SHAPE) == SIZE


@pytest.mark.parametrize("name", SHAPES)
def test_the_weights_that_are_counted_are_the_models(name: str) -> None:
    shape = SHAPES[name]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(shape.kind, **shape.config))
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 2)
    assert Size.of(shape).weights == matrices


def test_a_small_workload_is_bound_by_reading_as_computed_by_hand() -> None:
    # 472 weights of 2 bytes: 9.44 s. Prompts: 12 tokens of 432 weights and 4 of the head's 40, 10,688
    # operations, and 24 pairs of 48, 11.84 s, less than reading twice. 8 steps: beside the weights 11
    # tokens' 12 numbers of 2 bytes, 12.08 s; two rows' products and 11 pairs, 2.416 s.
    found = bound(SIZE, FLOATS, SMALL, LIMITS)
    assert found.apart == pytest.approx(20 / (2 * 9.44 + 8 * 12.08))
    assert found.mixed == pytest.approx(20 / (8 * 12.08))


def test_with_fast_memory_the_products_bind_whether_prompts_are_apart_or_not() -> None:
    found = bound(SIZE, FLOATS, SMALL, replace(LIMITS, read_bytes=1e6))
    assert found.apart == pytest.approx(20 / (11.84 + 8 * 2.416))
    assert found.mixed == pytest.approx(found.apart)


def test_a_shared_prefix_is_computed_once_and_read_once_by_each_step() -> None:
    shared = replace(SMALL, shared=6)
    # 6 tokens more, with 6 * 7 / 2 pairs of their own, and 6 pairs more for each of the 12; 6 for each text's
    prompts = 11.84 + (2 * 6 * 432 + (21 + 72) * 48) / 1000
    by_products = bound(SIZE, FLOATS, shared, replace(LIMITS, read_bytes=1e6))
    assert by_products.apart == pytest.approx(20 / (prompts + 8 * (2.416 + 2 * 6 * 48 / 1000)))
    by_reading = bound(SIZE, FLOATS, shared, replace(LIMITS, float_flops=1e6))
    assert by_reading.mixed == pytest.approx(20 / (8 * (12.08 + 6 * 12 * 2 / 100)))


def test_products_of_float32_and_bfloat16_are_as_fast_as_the_faster_way_to_have_them() -> None:
    assert LIMITS.mixed_flops == LIMITS.float_flops
    assert replace(LIMITS, bfloat16_flops=9000).mixed_flops == 3000


def test_one_clients_prompts_share_no_step_with_a_text() -> None:
    found = bound(SIZE, FLOATS, replace(SMALL, clients=1), LIMITS)
    assert found.mixed == found.apart


def test_each_precision_multiplies_by_its_fastest_peak() -> None:
    fast = replace(LIMITS, read_bytes=1e9)
    only = {name: replace(fast, **{name: 1e9}) for name in ("bfloat16_flops", "int8_flops")}
    faster = {
        group: [
            name
            for name, limits in only.items()
            if bound(SIZE, precision, SMALL, limits) != bound(SIZE, precision, SMALL, fast)
        ]
        for group, precision in PRECISIONS.items()
    }
    assert faster == {
        Group.F32: ["bfloat16_flops"],  # as the sum of three
        Group.HALF: ["bfloat16_flops"],
        Group.INT8: ["bfloat16_flops", "int8_flops"],
    }


@given(
    st.sampled_from(list(WORKLOADS.values())), st.sampled_from(list(PRECISIONS.values())), st.floats(1, 1e3)
)
def test_sharing_steps_never_lowers_the_bound_and_a_machine_twice_as_fast_doubles_it(
    workload: Workload, precision: Precision, memory: float
) -> None:
    limits = replace(LIMITS, read_bytes=memory)
    found = bound(SIZE, precision, workload, limits)
    assert found.mixed >= found.apart * (1 - 1e-9)
    twice = Limits(read_bytes=2 * memory, float_flops=2000, bfloat16_flops=4000, int8_flops=8000)
    assert bound(SIZE, precision, workload, twice).apart == pytest.approx(2 * found.apart)
