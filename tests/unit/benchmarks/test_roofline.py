from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.inprocess import Steps
from benchmarks.limits import Limits
from benchmarks.roofline import NAME, VARIANTS, demand, share
from benchmarks.serving.models import SHAPES
from inference.kernels.native import Library

LIMITS = Limits(read_bytes=20e9, float_flops=200e9, bfloat16_flops=400e9, int8_flops=800e9)
HALF = VARIANTS[0]


def test_only_what_the_cpu_computes_so_is_measured() -> None:
    def names(*, compresses: bool, has_bf16: bool) -> set[str]:
        library = cast(Library, SimpleNamespace(compresses=compresses, has_bf16=has_bf16))
        return {each.name for each in VARIANTS if each.is_had(library)}

    everywhere = {"bf16, products in fp32", "fp32", "int8"}
    assert names(compresses=False, has_bf16=False) == everywhere
    compressed = {"bf16 in 12 bits, products in fp32", "nf4, products in fp32"}
    assert names(compresses=True, has_bf16=False) == everywhere | compressed
    assert names(compresses=True, has_bf16=True) == {each.name for each in VARIANTS}
    assert {each.name for each in VARIANTS if each.is_had(None)} == everywhere - {"int8"}


def test_the_weights_that_are_counted_are_the_models() -> None:
    with torch.device("meta"):
        shape = SHAPES[NAME]
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(shape.kind, **shape.config))
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 2)
    needed = demand(HALF, batch=1, context=0)
    assert (2 * matrices, 2 * matrices) == (needed.read_bytes, needed.linear_operations)


def test_one_sequence_is_bound_by_reading_and_many_by_products() -> None:
    for batch, bound in ((1, "reading"), (64, "products")):
        needed = demand(HALF, batch, 0)
        seconds = {"reading": needed.read_bytes / 20e9, "products": needed.linear_operations / 200e9}
        found = needed.seconds(LIMITS, HALF.peak)
        assert found[1] == bound == max(seconds, key=seconds.__getitem__)
        assert found[0] == pytest.approx(max(seconds.values()))


def test_keys_and_values_are_read_by_each_sequence() -> None:
    grown = demand(HALF, 3, 100).read_bytes - demand(HALF, 3, 0).read_bytes
    assert grown == 3 * 100 * 46_080


def test_a_step_has_a_share_of_its_roof() -> None:
    roof, _ = demand(HALF, 1, 128.0).seconds(LIMITS, HALF.peak)
    row = share(HALF, Steps(1, 128.0, 2 * roof, roof), LIMITS)
    assert (row["share"], row["goal"], row["read_bytes_per_second"]) == (0.5, 0.85, 20e9)


def test_weights_in_12_bits_are_fewer_bytes_for_the_same_products() -> None:
    plain, coded = (demand(VARIANTS[i], 1, 0) for i in (0, 1))
    assert (coded.read_bytes, coded.linear_operations) == (0.75 * plain.read_bytes, plain.linear_operations)


def test_a_roof_is_by_the_memory_as_it_was_between_the_steps() -> None:
    slow = Steps(1, 128.0, 0.1, 0.1, beside=10e9)
    roof, bound = demand(HALF, 1, 128.0).seconds(replace(LIMITS, read_bytes=10e9), HALF.peak)
    row = share(HALF, slow, LIMITS)
    assert (row["bound"], row["read_bytes_per_second"]) == (bound, 10e9)
    assert row["roof_ms"] == pytest.approx(1e3 * roof, abs=0.01)
