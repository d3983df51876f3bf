from __future__ import annotations

import os
from dataclasses import replace

import pytest

from inference.blocks import PAGE
from inference.config import EngineConfig
from inference.errors import ModelUnavailable
from inference.plan import GIB, MIB, Demand, Machine, free_memory, make_plan

DEMAND = Demand(weights_bytes=512 * MIB, parameters=134_000_000, kv_bytes=46_080, max_positions=2048)
MACHINE = Machine(device_type="cpu", free_bytes=16 * GIB)


def test_cache_of_a_small_model_is_what_all_sequences_can_use() -> None:
    small = replace(DEMAND, kv_bytes=768)
    plan = make_plan(EngineConfig(), small, MACHINE)
    assert plan.kv_tokens == 32 * 2048
    assert (plan.max_total_tokens, plan.max_input_tokens) == (2048, 2047)


def test_cache_of_a_big_model_is_a_quarter_of_what_is_left_and_at_most_four_gibibytes() -> None:
    long = replace(DEMAND, max_positions=131_072)
    tight = make_plan(EngineConfig(), long, replace(MACHINE, free_bytes=4 * GIB + 512 * MIB))
    roomy = make_plan(EngineConfig(), long, replace(MACHINE, free_bytes=400 * GIB))
    assert tight.kv_tokens == GIB // 46_080 // PAGE * PAGE
    assert roomy.kv_tokens == 4 * GIB // 46_080 // PAGE * PAGE
    assert roomy.max_total_tokens == roomy.kv_tokens  # fewer than the model knows: one sequence must fit


def test_settings_come_before_computed_sizes() -> None:
    config = EngineConfig(
        max_batch_total_tokens=1000,
        max_total_tokens=500,
        max_input_tokens=300,
        max_batch_prefill_tokens=64,
        max_batch_size=4,
    )
    plan = make_plan(config, DEMAND, MACHINE)
    assert plan.kv_tokens == 992  # whole pages
    assert (plan.max_total_tokens, plan.max_input_tokens) == (500, 300)
    assert (plan.step_tokens, plan.sequences) == (64, 4)


def test_every_running_sequence_gets_a_token_in_each_step() -> None:
    plan = make_plan(EngineConfig(max_batch_prefill_tokens=8), DEMAND, MACHINE)
    assert plan.sequences == 8


@pytest.mark.parametrize(
    ("parameters", "tokens"), [(1_000_000, 1024), (25_000_000, 448), (8_000_000_000, 256)]
)
def test_budget_of_a_step_follows_the_models_size(parameters: int, tokens: int) -> None:
    assert make_plan(EngineConfig(), replace(DEMAND, parameters=parameters), MACHINE).step_tokens == tokens


@pytest.mark.parametrize(
    ("config", "demand", "message"),
    [
        (EngineConfig(max_total_tokens=4096), DEMAND, "`max_total_tokens` must be <= 2048"),
        (
            EngineConfig(max_total_tokens=2000, max_batch_total_tokens=1600),
            DEMAND,
            "the KV cache holds 1600 tokens",
        ),
        (EngineConfig(max_total_tokens=100, max_input_tokens=100), DEMAND, "Given: 100 and 100"),
        (EngineConfig(), replace(DEMAND, weights_bytes=16 * GIB), "the weights take 16,384 MiB"),
    ],
)
def test_what_does_not_fit_is_refused_with_numbers(
    config: EngineConfig, demand: Demand, message: str
) -> None:
    with pytest.raises(ModelUnavailable, match=message):
        make_plan(config, demand, MACHINE)


def test_model_without_a_longest_position_is_limited_by_memory_alone() -> None:
    plan = make_plan(EngineConfig(), replace(DEMAND, max_positions=None), MACHINE)
    assert plan.max_total_tokens == plan.kv_tokens


def test_plan_says_its_numbers() -> None:
    plan = make_plan(EngineConfig(max_batch_total_tokens=16_384), DEMAND, MACHINE)
    assert "weights 512 MiB, KV cache 16,384 tokens x 46,080 B = 720 MiB" in str(plan)


def test_free_memory_is_less_than_what_is_installed() -> None:
    assert 0 < free_memory() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
