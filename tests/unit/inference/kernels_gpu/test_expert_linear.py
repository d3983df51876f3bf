from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.gpu import torch_experts
from inference.gpu.mixtures import ExpertWeight, Routing
from inference.kernels.gating import Gating
from inference.kernels.gpu.expert_linear import expert_linear
from inference.kernels.gpu.expert_tiles import (
    ExpertTile,
    expert_tiles,
    fixed_tile,
    preferred_tiles,
    tiles_at_most,
)
from inference.kernels.gpu.linear import processors
from inference.kernels.gpu.routing import combine, route
from inference.quantised.bits4 import Bits4, pack_codes, whole_numbers
from inference.quantised.bits8 import Bits8
from inference.quantised.blocks import Blocks
from inference.quantised.codes import Codes
from tests.unit.inference.triton_device import DEVICE

TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # relative, of norms
DTYPES = st.sampled_from(list(TOLERANCES))
FEW_BITS = ("zero points", "levels", "int8", "e4m3")


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def choices(tokens: int, chosen: int, experts: int, *, none: bool = False, seed: int = 0) -> Tensor:
    """Return (tokens, chosen) of different experts, of which, with `none`, some aren't there."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(tokens, experts + (1 if none else 0), generator=generator).topk(chosen).indices
    return drawn.to(DEVICE)


def make(
    form: str,
    experts: int,
    outputs: int,
    inner: int,
    dtype: torch.dtype,
    *,
    group: int = 32,
    biased: bool = False,
) -> ExpertWeight:
    """Return random experts on the device."""
    bias = random(experts, outputs, dtype=dtype, seed=2) if biased else None
    if form == "turned":
        return ExpertWeight(
            random(experts, inner, outputs, dtype=dtype, seed=1).transpose(1, 2), experts, bias
        )
    if form == "plain":
        return ExpertWeight(random(experts, outputs, inner, dtype=dtype, seed=1), experts, bias)
    codes = [few_bits(form, outputs, inner, group, seed) for seed in range(experts)]
    weight = ExpertWeight.of_codes(codes, dtype, bias)
    assert weight is not None
    assert isinstance(weight.numbers, Blocks)
    return ExpertWeight(weight.numbers.to(DEVICE), experts, bias)


def few_bits(form: str, outputs: int, inner: int, group: int, seed: int) -> Codes:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.rand(outputs, -(-inner // group), generator=generator) + 0.5
    if form in ("int8", "e4m3"):
        numbers = torch.randn(outputs, inner, generator=generator) * 20
        eight = numbers.round().to(torch.int8) if form == "int8" else (numbers / 40).to(torch.float8_e4m3fn)
        return Bits8(eight, group, scales)
    codes = pack_codes(torch.randint(0, 16, (outputs, inner), generator=generator, dtype=torch.uint8))
    if form == "levels":
        return Bits4(codes, inner, group, scales, torch.linspace(-1.0, 1.0, 16) ** 3)
    zeros = torch.randint(0, 16, scales.shape, generator=generator)
    return whole_numbers(codes, inner, group, scales.half(), zeros)


def by_pairs(found: Tensor, routing: Routing) -> Tensor:
    """Return (pairs, n) as they come; 0 for those that nobody computes."""
    if routing.places is None:
        return found
    kept = (routing.places >= 0)[:, None]
    return torch.where(kept, found[routing.places.long().clamp(min=0)], 0.0)


def assert_close(found: Tensor, rows: Tensor, weight: ExpertWeight, routing: Routing) -> None:
    """Hold results as they come against sums in float64 of rows (pairs, k)."""
    assert found.dtype == rows.dtype
    expected, size = (torch.zeros(found.shape, dtype=torch.float64, device=DEVICE) for _ in range(2))
    for pair, expert in enumerate(routing.index.flatten().tolist()):
        if 0 <= expert < weight.experts:
            x, numbers = rows[pair].double(), weight.expert(expert).double()
            bias = 0.0 if weight.bias is None else weight.bias[expert].double()
            expected[pair] = numbers @ x + bias
            size[pair] = numbers.abs() @ x.abs() + abs(bias)
    error = (found.double() - expected).norm()
    assert error <= TOLERANCES[found.dtype] * size.norm()


def multiply(
    x: Tensor, weight: ExpertWeight, routing: Routing, tile: ExpertTile, *, gathers: bool = True
) -> Tensor:
    return by_pairs(expert_linear(x, weight, routing, gathers=gathers, tile=tile), routing)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 300), st.integers(1, 9), st.integers(0, 5), st.booleans(), st.booleans())
def test_pairs_are_sorted_by_expert_and_those_of_none_left_out(
    tokens: int, chosen: int, more: int, none: bool, short: bool
) -> None:
    experts = chosen + more
    index = choices(tokens, chosen, experts, none=none).to(torch.int32 if short else torch.int64)
    routing = route(index, experts)
    assert routing.begins is not None
    assert routing.order is not None
    assert routing.places is not None
    flat = index.flatten()
    there = flat < experts
    count = int(there.sum())
    expected = flat.argsort(stable=True)[:count]
    assert torch.equal(routing.order[:count].long(), expected)
    counts = torch.bincount(flat[there], minlength=experts)
    assert torch.equal(routing.begins.long(), torch.nn.functional.pad(counts.cumsum(0), (1, 0)))
    assert (routing.places[~there] == -1).all()
    assert torch.equal(routing.places[expected].long(), torch.arange(count, device=DEVICE))


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(["plain", "turned", *FEW_BITS]),
    st.integers(1, 40),
    st.integers(1, 4),
    st.integers(0, 9),
    st.integers(1, 70),
    st.integers(1, 300),
    DTYPES,
    st.booleans(),
    st.booleans(),
)
def test_pairs_are_multiplied_as_the_chosen_tile_goes(
    form: str,
    tokens: int,
    chosen: int,
    more: int,
    outputs: int,
    inner: int,
    dtype: torch.dtype,
    biased: bool,
    gathers: bool,
) -> None:
    experts = chosen + more
    weight = make(form, experts, outputs, inner, dtype, biased=biased)
    routing = route(choices(tokens, chosen, experts, none=more % 2 == 1), experts)
    if tokens == 1 and more % 3:
        routing = Routing(routing.index, experts)
    tile = next(expert_tiles(tokens, chosen, weight, processors(DEVICE)))
    x = random(tokens, inner, dtype=dtype)
    rows = x.repeat_interleave(chosen, 0)
    given_rows = x
    if not gathers:
        order = (
            torch.arange(tokens * chosen, device=DEVICE) if routing.order is None else routing.order.long()
        )
        given_rows = rows[order.clamp(0, len(rows) - 1)]
    found = multiply(given_rows, weight, routing, tile, gathers=gathers)
    assert_close(found, rows, weight, routing)


@pytest.mark.parametrize("form", ["plain", "turned", *FEW_BITS])
@pytest.mark.parametrize("rows", [1, 16, 64])
@pytest.mark.parametrize("inner", [256, 300])
def test_every_tile_gives_the_same_products(form: str, rows: int, inner: int) -> None:
    weight = make(form, 5, 37, inner, torch.float32, biased=True)
    tokens = 6 if rows == 1 else 40
    x, routing = random(tokens, inner), route(choices(tokens, 2, 5), 5)
    for outputs, turn in ((16, 128), (64, 256)):
        tile = ExpertTile(rows, outputs, turn)
        assert_close(multiply(x, weight, routing, tile), x.repeat_interleave(2, 0), weight, routing)


@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from(["plain", "turned", "levels"]),
    st.integers(1, 6),
    st.integers(1, 20),
    st.integers(1, 200),
    DTYPES,
    st.booleans(),
    st.sampled_from(
        [
            Gating(),
            Gating(activation="gelu"),
            Gating(alternating=True, limit=7.0, factor=1.702, offset=1.0),
            Gating(limit=5.0),
        ]
    ),
)
def test_a_gate_behind_them_is_computed_with_them(
    form: str, tokens: int, half: int, inner: int, dtype: torch.dtype, biased: bool, gate: Gating
) -> None:
    weight = make(form, 4, 2 * half, inner, dtype, biased=biased)
    x, routing = random(tokens, inner, dtype=dtype), route(choices(tokens, 2, 4), 4)
    for tile in (next(expert_tiles(tokens, 2, weight, processors(DEVICE))), ExpertTile(1, 4, 128)):
        found = by_pairs(expert_linear(x, weight, routing, True, gate, tile=tile), routing)
        assert found.shape == (2 * tokens, half)
        wide = ExpertWeight(
            torch.stack([weight.expert(each).float() for each in range(4)]),
            4,
            None if weight.bias is None else weight.bias.float(),
        )
        exact = torch_experts.multiply(x.float(), wide, torch_experts.route(routing.index, 4), True)
        places = torch_experts.route(routing.index, 4).places
        assert places is not None
        expected = gate(exact[places.long()])
        near = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}[dtype]
        assert (found.float() - expected).norm() <= near * expected.norm() + near


@pytest.mark.parametrize("form", ["plain", "turned", "levels", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_whatever_is_beside_it(form: str, dtype: torch.dtype) -> None:
    weight, x = make(form, 6, 50, 300, dtype, biased=True), random(60, 300, dtype=dtype)
    index, tile = choices(60, 2, 6), fixed_tile(weight)
    everything = multiply(x, weight, route(index, 6), tile)
    for some in (slice(0, 1), slice(3, 20), slice(59, 60)):
        alone = multiply(x[some], weight, route(index[some], 6), tile)
        assert torch.equal(alone, everything[2 * some.start : 2 * some.stop])
    turned = multiply(x.flip(0).contiguous(), weight, route(index.flip(0), 6), tile)
    assert torch.equal(turned.view(60, 2, -1).flip(0), everything.view(60, 2, -1))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 20), st.integers(1, 9), st.integers(0, 4), st.integers(1, 1100), DTYPES, st.booleans())
def test_a_tokens_experts_are_added_by_their_scores_in_their_own_order(
    tokens: int, chosen: int, more: int, width: int, dtype: torch.dtype, in_order: bool
) -> None:
    experts = chosen + more
    index = choices(tokens, chosen, experts, none=not in_order)
    routing = route(index, experts)
    found = random(tokens * chosen, width, dtype=dtype)
    found[int((index < experts).sum()) :] = torch.nan  # of nobody
    scores = random(tokens, chosen, seed=3)
    if in_order:
        routing = Routing(index, experts)
    combined = combine(found, routing, scores)
    assert combined.dtype == dtype
    parts = by_pairs(found, routing).double().view(tokens, chosen, width)
    expected = (parts * scores.double()[..., None]).sum(1)
    size = (parts.abs() * scores.double().abs()[..., None]).sum(1)
    assert (combined.double() - expected).norm() <= TOLERANCES[dtype] * size.norm()


def test_the_order_in_which_a_token_chose_changes_no_bit() -> None:
    index, x, scores = choices(30, 6, 9), random(30, 700), random(30, 6, seed=3)
    weight = make("plain", 9, 90, 700, torch.float32)
    shuffled = torch.rand(30, 6, generator=torch.Generator().manual_seed(9)).argsort().to(DEVICE)

    def computed(index: Tensor, scores: Tensor) -> Tensor:
        routing = route(index, 9)
        return combine(
            expert_linear(x, weight, routing, gathers=True, tile=fixed_tile(weight)), routing, scores
        )

    assert torch.equal(
        computed(index, scores), computed(index.gather(1, shuffled), scores.gather(1, shuffled))
    )


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=40), st.sampled_from([16, 32, 64, 128]))
def test_there_are_never_more_tiles_than_programs(counts: list[int], rows: int) -> None:
    pairs = sum(counts)
    routing = Routing(torch.zeros(pairs, 1), len(counts))
    assert sum(-(-count // rows) for count in counts) <= tiles_at_most(routing, rows) <= max(pairs, 0)


@pytest.mark.parametrize("tokens", [1, 2, 4, 16, 17, 64, 256, 4096])
@pytest.mark.parametrize("form", ["plain", "levels"])
@pytest.mark.parametrize(
    ("experts", "chosen", "outputs", "inner"), [(128, 8, 1536, 2048), (8, 2, 28672, 4096), (3, 1, 20, 10)]
)
def test_tiles_are_powers_of_two_of_which_each_is_said_once(
    tokens: int, form: str, experts: int, chosen: int, outputs: int, inner: int
) -> None:
    like = torch.empty(experts, outputs, inner, dtype=torch.bfloat16, device="meta")
    weight = ExpertWeight(like, experts)
    if form == "levels":
        small = make("levels", experts, 1, inner, torch.bfloat16).numbers
        weight = ExpertWeight(small, experts)
    found = list(expert_tiles(tokens, chosen, weight, 132))
    assert len(set(found)) == len(found) >= 1
    for tile in (*found, fixed_tile(weight)):
        assert all(number & (number - 1) == 0 for number in (tile.rows, tile.outputs, tile.inner))
        assert tile.rows == 1 or tile.rows >= 16
    assert (found[0].rows == 1) == (tokens == 1)
    assert found[0] in preferred_tiles(chosen, weight, 132) or tokens == 1
    assert len(preferred_tiles(chosen, weight, 132)) <= 6


def test_what_it_cannot_do_is_refused() -> None:
    weight, index = make("plain", 3, 8, 16, torch.float32), choices(4, 2, 3)
    with pytest.raises(ValueError, match="side by side"):
        expert_linear(random(16, 4).T, weight, route(index, 3), gathers=True, tile=fixed_tile(weight))
    with pytest.raises(ValueError, match="sorted by their experts"):
        expert_linear(random(4, 16), weight, Routing(index, 3), gathers=True, tile=fixed_tile(weight))
    with pytest.raises(ValueError, match="one score"):
        combine(random(8, 16), route(index, 3), random(4, 3))
    none = expert_linear(random(0, 16), weight, route(index[:0], 3), gathers=True, tile=fixed_tile(weight))
    assert none.shape == (0, 8)
    assert combine(none, route(index[:0], 3), random(0, 2)).shape == (0, 8)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["plain", "turned", *FEW_BITS])
@pytest.mark.parametrize("tokens", [1, 2, 16, 64, 512])
@pytest.mark.parametrize(
    ("experts", "chosen", "outputs", "inner"),
    [(128, 8, 1536, 2048), (8, 2, 4096, 14336), (32, 4, 2880, 2880)],
)
def test_experts_of_real_models(
    form: str, tokens: int, experts: int, chosen: int, outputs: int, inner: int
) -> None:
    weight = make(form, experts, outputs, inner, torch.bfloat16)
    x, routing = random(tokens, inner, dtype=torch.bfloat16), route(choices(tokens, chosen, experts), experts)
    for tile in (*expert_tiles(tokens, chosen, weight, processors(DEVICE)), fixed_tile(weight)):
        found = multiply(x, weight, routing, tile)
        assert_close(found, x.repeat_interleave(chosen, 0), weight, routing)
