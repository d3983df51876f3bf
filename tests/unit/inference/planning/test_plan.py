from __future__ import annotations

import math
from dataclasses import replace

import pytest

from inference.config import EngineConfig
from inference.errors import ModelUnavailable
from inference.kv_cache.blocks import PAGE
from inference.machine import Machine
from inference.planning.demand import TOKEN_BYTES, Demand
from inference.planning.plan import GIB, MIB, fit_plan, make_plan

DEMAND = Demand(weights_bytes=512 * MIB, parameters=106_000_000, kv_bytes=46_080, max_positions=2048)
MACHINE = Machine(device_type="cpu", free_bytes=16 * GIB, threads=2, isa="avx512")


def test_cache_of_a_small_model_is_what_all_sequences_can_use() -> None:
    small = replace(DEMAND, kv_bytes=768)
    plan = make_plan(EngineConfig(), small, MACHINE)
    assert plan.kv_tokens == 32 * 2048
    assert (plan.max_total_tokens, plan.max_input_tokens) == (2048, 2047)


def test_cache_is_not_bigger_than_the_weights_or_two_gibibytes() -> None:
    long = replace(DEMAND, max_positions=131_072)
    rich = replace(MACHINE, free_bytes=100 * GIB)
    assert make_plan(EngineConfig(), long, rich).kv_tokens == 2 * GIB // 46_080 // PAGE * PAGE
    big = replace(long, weights_bytes=16 * GIB)
    assert make_plan(EngineConfig(), big, rich).kv_tokens == 16 * GIB // 46_080 // PAGE * PAGE


def test_pieces_of_prompts_are_bigger_where_products_are_faster() -> None:
    plans = [make_plan(EngineConfig(), replace(DEMAND, product_speed=speed), MACHINE) for speed in (1.0, 3.0)]
    assert plans[0].beside_tokens < plans[1].beside_tokens
    assert plans[0].step_tokens < plans[1].step_tokens
    assert make_plan(EngineConfig(prefill_chunk_tokens=7), DEMAND, MACHINE).beside_tokens == 7


def test_gpu_computes_the_more_of_prompts_in_a_step_the_smaller_a_model_is() -> None:
    """So that it takes longer than the host does to launch one, and texts that go on wait 25 ms for it."""
    device = replace(MACHINE, device_type="cuda", free_bytes=64 * GIB, flops=4e14)
    found = []
    for parameters in (10_000_000, 494_000_000, 1_235_000_000, 8_000_000_000):
        plan = make_plan(EngineConfig(), replace(DEMAND, parameters=parameters), device)
        assert plan.step_tokens == plan.beside_tokens
        assert plan.step_tokens % 8 == 0
        found.append(plan.step_tokens)
    assert found == [16_384, 10_120, 4_048, 2_048]
    assert make_plan(EngineConfig(), DEMAND, replace(device, flops=4e13)).step_tokens == 4_712
    assert make_plan(EngineConfig(), DEMAND, replace(device, flops=0.0)).step_tokens == 2_048
    asked = make_plan(EngineConfig(max_batch_prefill_tokens=4096), DEMAND, device)
    assert asked.step_tokens == asked.beside_tokens == 4096
    assert make_plan(EngineConfig(prefill_chunk_tokens=512), DEMAND, device).beside_tokens == 512


def test_no_more_of_prompts_is_computed_beside_texts_than_a_step_has() -> None:
    plan = make_plan(EngineConfig(max_batch_prefill_tokens=10), DEMAND, MACHINE)
    assert plan.beside_tokens == plan.step_tokens == 10
    assert "up to 10 tokens of 10 sequences, 10 of prompts beside a text that goes on" in str(plan)
    both = EngineConfig(max_batch_prefill_tokens=10, prefill_chunk_tokens=11)
    assert make_plan(both, DEMAND, MACHINE).beside_tokens == 10


def test_cache_of_a_big_model_is_a_quarter_of_what_is_left() -> None:
    long = replace(DEMAND, max_positions=131_072)
    tight = make_plan(EngineConfig(), long, replace(MACHINE, free_bytes=4 * GIB + 512 * MIB))
    assert tight.kv_tokens == GIB // 46_080 // PAGE * PAGE
    assert tight.max_total_tokens == tight.kv_tokens  # fewer than the model knows: one sequence must fit


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
    ("parameters", "chunk"), [(1_000_000, 1024), (106_000_000, 128), (360_000_000, 64), (8_000_000_000, 64)]
)
def test_piece_of_a_prompt_follows_the_models_size_and_every_sequence_has_its_token_beside_it(
    parameters: int, chunk: int
) -> None:
    plan = make_plan(EngineConfig(), replace(DEMAND, parameters=parameters), MACHINE)
    assert plan.step_tokens == plan.sequences + chunk


def test_piece_of_a_prompt_follows_the_machine_and_is_small_unless_it_is_computed_at_once() -> None:
    plans = [make_plan(EngineConfig(), DEMAND, replace(MACHINE, threads=threads)) for threads in (2, 4, 8)]
    assert [plan.step_tokens - plan.sequences for plan in plans] == [128, 160, 176]


@pytest.mark.parametrize(
    ("config", "demand", "message"),
    [
        (EngineConfig(max_total_tokens=4096), DEMAND, "`max_total_tokens` must be <= 2048"),
        (
            EngineConfig(max_total_tokens=2000, max_batch_total_tokens=1600),
            DEMAND,
            "the KV cache holds 1600 tokens",
        ),
        (
            EngineConfig(max_batch_total_tokens=10),
            DEMAND,
            "`max_batch_total_tokens` must be >= 16, a block of the KV cache. Given: 10; raise --max-batch",
        ),
        (
            EngineConfig(max_total_tokens=8193),
            replace(DEMAND, most_positions=8192, positions_note="; and so on"),
            "`max_total_tokens` must be <= 8192, the positions that the model knows. Given: 8193; lower "
            "--max-total-tokens, or leave it out; and so on",
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


def test_more_than_the_usual_positions_are_there_for_who_asks_for_them() -> None:
    stretched = replace(DEMAND, most_positions=8192)
    assert make_plan(EngineConfig(), stretched, MACHINE).max_total_tokens == 2048
    assert make_plan(EngineConfig(max_total_tokens=8000), stretched, MACHINE).max_total_tokens == 8000


def test_texts_become_no_longer_when_a_token_is_found_to_need_less() -> None:
    small = replace(MACHINE, cache_bytes=1000 * DEMAND.kv_bytes)
    plan = make_plan(EngineConfig(), DEMAND, small)
    assert (plan.kv_tokens, plan.max_total_tokens) == (992, 992)
    less, more = (replace(DEMAND, kv_bytes=DEMAND.kv_bytes * part // 4) for part in (2, 8))
    fitted = fit_plan(EngineConfig(), plan, less, small)
    assert (fitted.kv_tokens, fitted.max_total_tokens) == (2000, 992)
    assert fit_plan(EngineConfig(), plan, more, small).max_total_tokens == 496


@pytest.mark.parametrize("asked", [400_000, 2_147_483_647])
def test_cache_that_is_larger_than_the_memory_becomes_what_there_is_and_is_told(asked: int) -> None:
    plan = make_plan(EngineConfig(max_batch_total_tokens=asked), DEMAND, MACHINE)
    left = MACHINE.free_bytes - DEMAND.weights_bytes
    assert 0.8 * left < plan.kv_tokens * DEMAND.kv_bytes <= left
    assert f"(there is no memory for the {asked:,} tokens of --max-batch-total-tokens)" in str(plan)


def test_cache_that_no_memory_is_left_for_is_refused() -> None:
    config, tight = EngineConfig(max_batch_total_tokens=1000), replace(MACHINE, free_bytes=513 * MIB)
    with pytest.raises(ModelUnavailable, match="Not enough memory: 513 MiB are free"):
        make_plan(config, replace(DEMAND, kv_bytes=MIB), tight)


def test_plan_says_its_numbers() -> None:
    plan = make_plan(EngineConfig(max_batch_total_tokens=16_384), DEMAND, MACHINE)
    assert "2 threads, native kernels (avx512); weights 512 MiB (float32)" in str(plan)
    assert "KV cache 16,384 tokens x 46,080 B = 720 MiB of 16,384 MiB free, prefix cache on" in str(plan)


def test_weights_that_are_expanded_must_fit_before_they_are_packed() -> None:
    demand = replace(DEMAND, loading_bytes=2 * GIB, loading_how="expanded", weights_form="int8")
    said = str(make_plan(EngineConfig(), demand, MACHINE))
    assert "weights 512 MiB (int8; 2,048 MiB while they are expanded)" in said
    small = replace(MACHINE, free_bytes=2 * GIB - 1)
    with pytest.raises(ModelUnavailable, match="the weights take 2,048 MiB while they are expanded"):
        make_plan(EngineConfig(), demand, small)
    assert "expanded" not in str(make_plan(EngineConfig(), replace(demand, loading_bytes=512 * MIB), MACHINE))


STATEFUL = replace(DEMAND, state_bytes=20 * MIB)
TIGHT = replace(MACHINE, free_bytes=4 * GIB + 512 * MIB)  # of which the cache may take a GiB


def test_states_of_all_sequences_come_before_the_cache() -> None:
    long = replace(DEMAND, max_positions=131_072)
    plain, stateful = (
        make_plan(EngineConfig(), each, MACHINE) for each in (long, replace(long, state_bytes=MIB))
    )
    assert stateful.sequences == stateful.snapshots == plain.sequences == 32
    assert plain.kv_tokens - stateful.kv_tokens == pytest.approx(3 * 32 * MIB / 46_080, abs=PAGE)
    assert "64 states of texts and 32 of beginnings x 1.0 MiB = 96 MiB, KV cache" in str(stateful)
    assert plain.snapshots == 0
    assert "states" not in str(plain)


@pytest.mark.parametrize(("caches", "states"), [(True, 3), (False, 2)])
def test_states_take_three_quarters_of_the_memory_at_most_and_fewer_sequences_run(
    caches: bool, states: int
) -> None:
    config = EngineConfig(prefix_caching=caches)
    plan = make_plan(config, STATEFUL, TIGHT)
    assert plan.sequences == 768 // (states * 20)
    taken = (2 * plan.sequences + plan.snapshots) * STATEFUL.state_bytes
    assert taken <= 768 * MIB
    assert plan.kv_tokens * 46_080 + taken <= GIB
    assert make_plan(config, replace(DEMAND, state_bytes=300 * MIB), TIGHT).sequences == 1


@pytest.mark.parametrize(("sequences", "snapshots"), [(1, 16), (4, 16), (40, 40)])
def test_states_of_few_texts_leave_places_for_beginnings(sequences: int, snapshots: int) -> None:
    assert make_plan(EngineConfig(max_batch_size=sequences), STATEFUL, MACHINE).snapshots == snapshots


def test_without_memory_for_states_of_beginnings_there_is_no_prefix_cache() -> None:
    big = replace(DEMAND, state_bytes=300 * MIB)
    plan = make_plan(EngineConfig(), big, TIGHT)
    assert (plan.sequences, plan.snapshots, plan.prefix_caching) == (1, 0, False)
    assert not make_plan(EngineConfig(prefix_caching=False), STATEFUL, MACHINE).snapshots


@pytest.mark.parametrize("kv_tokens", [None, 16_384])
def test_as_many_texts_as_are_asked_for_may_take_most_of_what_is_free(kv_tokens: int | None) -> None:
    config = EngineConfig(max_batch_size=64, max_batch_total_tokens=kv_tokens)
    plan = make_plan(config, STATEFUL, TIGHT)  # 2,560 of 4,096 MiB, and a GiB is what is modest
    assert plan.sequences == 64
    assert plan.snapshots == 3072 // 20 - 2 * 64
    with pytest.raises(ModelUnavailable, match=r"states of 80 sequences 3,200 MiB \(--max-batch-size"):
        make_plan(replace(config, max_batch_size=80), STATEFUL, TIGHT)


def test_who_asks_for_long_texts_gets_fewer_sequences_with_states() -> None:
    longest = 16_384  # 720 MiB of the GiB
    config = EngineConfig(max_total_tokens=longest, prefix_caching=False)
    plan = make_plan(config, replace(STATEFUL, max_positions=32_768), TIGHT)
    assert plan.max_total_tokens == longest
    assert plan.sequences == (1024 - 720) // 40


@pytest.mark.parametrize(("device", "longest"), [("cpu", 20_000), ("cuda", 75_000)])
def test_beginnings_leave_room_for_the_longest_text_that_is_asked_for(device: str, longest: int) -> None:
    demand = replace(STATEFUL, max_positions=131_072)
    machine = replace(TIGHT, device_type=device, flops=1e15)
    plan = make_plan(EngineConfig(max_batch_size=4, max_total_tokens=longest), demand, machine)
    assert plan.max_total_tokens == longest
    assert plan.sequences == 4
    assert 0 < plan.snapshots <= 16


def test_no_more_sequences_are_planned_than_may_be() -> None:
    assert make_plan(EngineConfig(), STATEFUL, MACHINE, most=5).sequences == 5
    assert make_plan(EngineConfig(max_batch_size=9), STATEFUL, MACHINE, most=5).sequences == 5


def test_text_of_a_model_without_limits_has_one() -> None:
    books = replace(DEMAND, max_positions=None, kv_bytes=TOKEN_BYTES, state_bytes=MIB)
    plan = make_plan(EngineConfig(), books, MACHINE)
    assert plan.max_total_tokens == 1 << 20
    assert "MiB, books for " in str(plan)


WHOLE = replace(DEMAND, whole=True, pair_bytes=12 * 16)  # of 16 heads


def test_prompts_that_are_read_at_once_are_no_longer_than_there_is_memory_for() -> None:
    roomy = make_plan(EngineConfig(), WHOLE, MACHINE)
    assert (roomy.max_input_tokens, roomy.max_total_tokens) == (2047, 2048)
    tight = make_plan(EngineConfig(), WHOLE, replace(MACHINE, free_bytes=512 * MIB + 1200 * MIB))
    assert tight.max_input_tokens == math.isqrt(600 * MIB // (12 * 16))
    assert tight.max_total_tokens == 2048
    asked = replace(EngineConfig(), max_input_tokens=2000)
    assert make_plan(asked, WHOLE, replace(MACHINE, free_bytes=1712 * MIB)).max_input_tokens == 2000


def test_where_prompts_are_read_at_once_a_text_without_a_limit_has_a_modest_one() -> None:
    endless = replace(WHOLE, max_positions=None, kv_bytes=TOKEN_BYTES)
    assert make_plan(EngineConfig(), endless, MACHINE).max_total_tokens == 4096
    assert make_plan(EngineConfig(max_total_tokens=9000), endless, MACHINE).max_total_tokens == 9000
    pieces = replace(endless, whole=False)
    assert make_plan(EngineConfig(), pieces, MACHINE).max_total_tokens > 100_000


def test_what_a_step_may_compute_bounds_prompts_that_are_read_at_once() -> None:
    plan = make_plan(EngineConfig(max_batch_prefill_tokens=500), WHOLE, MACHINE)
    assert (plan.max_input_tokens, plan.prefill_tokens) == (500, 500)
    assert make_plan(EngineConfig(), WHOLE, MACHINE).prefill_tokens == 2047
    assert make_plan(EngineConfig(max_batch_prefill_tokens=500), DEMAND, MACHINE).max_input_tokens == 2047
    both = EngineConfig(max_batch_prefill_tokens=500, max_input_tokens=501)
    with pytest.raises(ModelUnavailable, match="must be >= `max_input_tokens`, as this model reads prompts"):
        make_plan(both, WHOLE, MACHINE)
    assert make_plan(both, DEMAND, MACHINE).max_input_tokens == 501


def test_a_plan_of_prompts_that_are_read_at_once_says_so() -> None:
    said = str(make_plan(EngineConfig(), WHOLE, MACHINE))
    assert "prefix cache off" in said
    assert said.endswith("a step computes prompts whole, one at a time, of 32 sequences")


def test_a_prompt_and_a_text_have_positions_of_their_own_behind_an_encoder() -> None:
    bart = replace(WHOLE, max_positions=2048, most_positions=2048, part_positions=1024, most_part=1024)
    plan = make_plan(EngineConfig(), bart, MACHINE)
    assert (plan.max_input_tokens, plan.max_total_tokens) == (1024, 2048)
    assert (bart.longest_text(1), bart.longest_text(2), WHOLE.longest_text(1)) == (1024, 1023, None)
    with pytest.raises(ModelUnavailable, match="`max_input_tokens` must be <= 1024, the positions that"):
        make_plan(EngineConfig(max_input_tokens=1025), bart, MACHINE)
    t5 = replace(WHOLE, max_positions=1024, most_positions=1 << 30, part_positions=512, most_part=1 << 29)
    assert make_plan(EngineConfig(), t5, MACHINE).max_input_tokens == 512
    assert make_plan(EngineConfig(max_total_tokens=1500), t5, MACHINE).max_input_tokens == 1499


def test_texts_that_become_batches_leave_a_device_memory_for_it() -> None:
    device = replace(MACHINE, device_type="cuda", free_bytes=20 * GIB, flops=1e14)
    left = device.free_bytes - WHOLE.weights_bytes
    endless = replace(WHOLE, max_positions=None)
    pieces = make_plan(EngineConfig(max_total_tokens=4096), replace(endless, whole=False), device)
    whole = make_plan(EngineConfig(max_total_tokens=4096), endless, device)
    assert whole.kv_tokens * WHOLE.kv_bytes <= left // 4 < pieces.kv_tokens * WHOLE.kv_bytes
    asked = make_plan(EngineConfig(max_batch_total_tokens=10_000_000), endless, device)
    assert asked.kv_tokens * WHOLE.kv_bytes <= left // 3
    assert asked.missed_tokens == 10_000_000


def test_what_a_steps_experts_compute_is_planned_for_and_said() -> None:
    """As for Qwen3-30B-A3B, whose tokens are given to 8 experts, 2048 wide."""
    mixture = replace(DEMAND, step_token_bytes=8 * 4 * (2 * 2048 + 768), max_positions=131_072)
    tight = replace(MACHINE, free_bytes=4 * GIB + 512 * MIB)
    plan, without = (
        make_plan(EngineConfig(), each, tight) for each in (mixture, replace(mixture, step_token_bytes=0))
    )
    step = plan.step_tokens * mixture.step_token_bytes
    assert f", what a step's experts compute {step / MIB:,.0f} MiB, KV cache" in str(plan)
    assert "experts" not in str(without)
    assert plan.kv_tokens == (4 * GIB - step) // 4 // DEMAND.kv_bytes // PAGE * PAGE < without.kv_tokens
    assert fit_plan(EngineConfig(), plan, plan.demand, tight) == plan
    small = replace(MACHINE, free_bytes=512 * MIB + step)
    with pytest.raises(
        ModelUnavailable, match=r"what a step's experts compute \d+ MiB \(--max-batch-prefill"
    ):
        make_plan(EngineConfig(), mixture, small)
