"""The oracle is the rotation as transformers writes it, in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")

from inference.kernels.gpu.rope import rope_and_write, write
from inference.kv_cache.blocks import PAGE
from tests.unit.inference.triton_device import DEVICE

BLOCKS, POSITIONS, EPS = 4, 40, 1e-6
TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@dataclass(frozen=True, slots=True)
class Heads:
    """What is asked of the kernel."""

    heads: int = 4
    kv_heads: int = 2
    dim: int = 32
    rotary: int | None = 32
    interleaved: bool = False
    query_normed: bool = False
    key_normed: bool = False
    dtype: torch.dtype = torch.float32

    def random(self, *shape: int, seed: int) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

    def tables(self) -> tuple[Tensor, Tensor] | None:
        if self.rotary is None:
            return None
        return self.random(POSITIONS, self.rotary, seed=1), self.random(POSITIONS, self.rotary, seed=2)

    def norms(self) -> tuple[Tensor | None, Tensor | None]:
        weights = (self.random(self.dim, seed=seed) for seed in (3, 4))
        query, key = (
            weight if normed else None
            for weight, normed in zip(weights, (self.query_normed, self.key_normed), strict=True)
        )
        return query, key


def run(asked: Heads, qkv: Tensor, positions: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the queries, and the keys and values of a cache that was full of NaN, by places."""
    keys, values = (
        torch.full((BLOCKS, PAGE, asked.kv_heads, asked.dim), torch.nan, device=DEVICE, dtype=asked.dtype)
        for _ in range(2)
    )
    cosines, sines = (None, None) if (pair := asked.tables()) is None else (each.to(DEVICE) for each in pair)
    query_norm, key_norm = (None if weight is None else weight.to(DEVICE) for weight in asked.norms())
    query = rope_and_write(
        qkv.to(DEVICE, asked.dtype), cosines, sines, positions.to(DEVICE), places.to(DEVICE), keys, values,
        asked.heads, asked.kv_heads,
        interleaved=asked.interleaved, query_norm=query_norm, key_norm=key_norm, eps=EPS,
    )  # fmt: skip
    return query.cpu(), keys.cpu().flatten(0, 1), values.cpu().flatten(0, 1)


def by_hand(asked: Heads, qkv: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values (T, heads, dim) in float64."""
    x = qkv.to(asked.dtype).double().view(len(qkv), -1, asked.dim)
    query, key, value = x.split([asked.heads, asked.kv_heads, asked.kv_heads], 1)
    query_norm, key_norm = asked.norms()
    return (
        rotated(asked, normed(query, query_norm), positions),
        rotated(asked, normed(key, key_norm), positions),
        value,
    )


def normed(x: Tensor, weight: Tensor | None) -> Tensor:
    return x if weight is None else weight.double() * x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


def rotated(asked: Heads, x: Tensor, positions: Tensor) -> Tensor:
    tables = asked.tables()
    if tables is None or asked.rotary is None:
        return x
    cosines, sines = (each[positions][:, None].double() for each in tables)
    turned, rest = x[..., : asked.rotary], x[..., asked.rotary :]
    half = asked.rotary // 2
    if asked.interleaved:
        across = torch.empty_like(turned)
        across[..., ::2], across[..., 1::2] = -turned[..., 1::2], turned[..., ::2]
    else:
        across = torch.cat([-turned[..., half:], turned[..., :half]], -1)
    return torch.cat([turned * cosines + across * sines, rest], -1)


def assert_near(expected: Tensor, found: Tensor) -> None:
    error = (expected - found.double()).abs() / (expected.abs() + 1)
    assert error.max() <= TOLERANCES[found.dtype]


@st.composite
def asked_heads(draw: st.DrawFn) -> Heads:
    """Draw heads of all shapes, wholly, partly or not rotated."""
    kv_heads = draw(st.integers(1, 3))
    dim = draw(st.sampled_from([32, 48, 64, 80, 128]))
    return Heads(
        heads=kv_heads * draw(st.sampled_from([1, 3, 7])),
        kv_heads=kv_heads,
        dim=dim,
        rotary=draw(st.sampled_from([None, 2, dim // 4 * 2, dim])),
        interleaved=draw(st.booleans()),
        query_normed=draw(st.booleans()),
        key_normed=draw(st.booleans()),
        dtype=draw(st.sampled_from(list(TOLERANCES))),
    )


@settings(deadline=None, max_examples=25)
@given(asked_heads())
def test_heads_are_normed_rotated_and_kept(asked: Heads) -> None:
    positions, places = torch.tensor([0, 39, 7]), torch.tensor([5, 63, 16])
    qkv = asked.random(3, (asked.heads + 2 * asked.kv_heads) * asked.dim, seed=0)
    query, keys, values = run(asked, qkv, positions, places)
    for expected, found in zip(
        by_hand(asked, qkv, positions), (query, keys[places], values[places]), strict=True
    ):
        assert_near(expected, found)
    for cache in (keys, values):
        assert 3 == int((~cache.isnan()).flatten(1).all(1).sum())


def test_values_keep_their_bits() -> None:
    asked = Heads(query_normed=True, key_normed=True, dtype=torch.bfloat16)
    qkv = asked.random(1, 8 * 32, seed=0).bfloat16()
    _, _, values = run(asked, qkv, torch.tensor([3]), torch.tensor([9]))
    assert torch.equal(qkv.view(8, 32)[6:], values[9])


@pytest.mark.parametrize("rotary", [32, None])
def test_padding_is_not_written_and_reads_no_table(rotary: int | None) -> None:
    asked = Heads(rotary=rotary)
    qkv = asked.random(3, 8 * 32, seed=0)
    query, keys, values = run(asked, qkv, torch.tensor([2**40, 5, -1]), torch.tensor([-1, 20, -1]))
    alone, *_ = run(asked, qkv[1:2], torch.tensor([5]), torch.tensor([20]))
    assert torch.equal(alone[0], query[1])
    assert query.isfinite().all()
    for cache in (keys, values):
        assert [20] == (~cache.isnan()).flatten(1).any(1).nonzero().flatten().tolist()


def test_a_row_of_a_wider_tensor_gives_the_same_bits() -> None:
    asked = Heads(dim=48, rotary=24, interleaved=True, query_normed=True)
    qkv = asked.random(5, 8 * 48 + 11, seed=0)
    positions, places = torch.arange(5), torch.arange(5)
    wide, *_ = run(asked, qkv[:, : 8 * 48], positions, places)
    narrow, *_ = run(asked, qkv[3:4, : 8 * 48].contiguous(), positions[3:4], places[3:4])
    assert torch.equal(wide[3:4], narrow)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_keys_and_values_of_other_sizes_are_written_as_they_are(dtype: torch.dtype) -> None:
    key, value = (torch.randn(4, 3, dim, device=DEVICE, dtype=dtype) for dim in (48, 32))
    keys, values = (torch.full((2, PAGE, 3, dim), torch.nan, device=DEVICE, dtype=dtype) for dim in (48, 32))
    places = torch.tensor([31, -1, 0, 17], device=DEVICE)
    # As a model's own rotation leaves them: heads first
    write(key.transpose(0, 1).contiguous().transpose(0, 1), value, places, keys, values)
    for new, cache in ((key, keys), (value, values)):
        flat = cache.flatten(0, 1)
        assert torch.equal(new[[0, 2, 3]], flat[[31, 0, 17]])
        assert 3 == int((~flat.isnan()).flatten(1).any(1).sum())


def test_values_that_begin_keys_are_not_written_by_themselves() -> None:
    key, places = torch.randn(3, 1, 40, device=DEVICE), torch.tensor([31, -1, 0], device=DEVICE)
    keys = torch.full((2, PAGE, 1, 40), torch.nan, device=DEVICE)
    write(key, None, places, keys, keys[..., :24])
    assert torch.equal(key[[0, 2]], keys.flatten(0, 1)[[31, 0]])
    assert 2 == int((~keys.isnan()).flatten(0, 1).flatten(1).any(1).sum())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
def test_real_sizes(dtype: torch.dtype) -> None:
    base = Heads(32, 8, 128, 128, dtype=dtype)
    for asked in (
        base,
        replace(base, interleaved=True, rotary=64),
        replace(base, query_normed=True, key_normed=True),
    ):
        tokens = 64
        positions, places = torch.arange(tokens) % POSITIONS, torch.randperm(tokens)
        qkv = asked.random(tokens, 48 * 128, seed=0)
        query, keys, values = run(asked, qkv, positions, places)
        for expected, found in zip(
            by_hand(asked, qkv, positions), (query, keys[places], values[places]), strict=True
        ):
            assert_near(expected, found)
