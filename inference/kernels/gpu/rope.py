"""Norm and rotate the heads of queries and keys, and put keys and values into the paged cache, in one kernel.

A program takes a few heads of one token: the heads of queries, keys and values lie side by side in
a row, as the merged linear leaves them. All is computed in float32 and rounded once. The bits of a
head depend on nothing but itself.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier
from inference.kernels.gpu.tiles import power_of_two

_NUMBERS = 1024  # of one program: 16 bytes of 16-bit numbers for each thread of four warps
_WARPS = 4


def rope_and_write(
    qkv: Tensor,
    cosines: Tensor | None,
    sines: Tensor | None,
    positions: Tensor,
    places: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    kv_heads: int,
    *,
    interleaved: bool = False,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 0.0,
    out: Tensor | None = None,
) -> Tensor:
    """Return the rotated queries (T, H, D); keys and values of `qkv` go into the cache.

    qkv (T, (H + 2 * Hk) * D); cosines and sines (positions, rotary) float32 or None; positions,
    places (T,) int64, a place of -1 is not written; keys, values (blocks, PAGE, Hk, D); norms (D,)
    float32. A position that the tables don't have isn't read: what is rotated becomes zeros.
    """
    dim = keys.shape[3]
    assert values.shape == keys.shape, "one dim for all"
    assert qkv.shape[1] == (heads + 2 * kv_heads) * dim, "rows of heads"
    assert qkv.stride(1) == keys.stride(3) == values.stride(3) == 1, "heads are contiguous"
    out = qkv.new_empty(len(qkv), heads, dim) if out is None else out
    limit, rotary = (0, 0) if cosines is None else cosines.shape
    if cosines is not None and sines is not None:
        assert rotary <= dim, "at most all numbers of a head are rotated"
        assert cosines.stride() == sines.stride() == (rotary, 1), "(positions, rotary)"
    group = max(1, _NUMBERS // power_of_two(dim))
    launch(
        _rotate_and_write, (len(qkv), triton.cdiv(heads + 2 * kv_heads, group)),
        qkv, cosines, sines, positions, places, query_norm, key_norm, out, keys, values,
        limit, eps, qkv.stride(0), *out.stride()[:2], *keys.stride()[:3], *values.stride()[:3],
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, DIMS=power_of_two(dim), ROTARY=rotary, GROUP=group,
        PAGE=keys.shape[1], INTERLEAVED=interleaved,
        QUERY_NORM=query_norm is not None, KEY_NORM=key_norm is not None,
        num_warps=_WARPS, enable_fp_fusion=True,
    )  # fmt: skip
    return out


def write(key: Tensor, value: Tensor | None, places: Tensor, keys: Tensor, values: Tensor) -> None:
    """Put keys (T, Hk, D) and values (T, Hk, Dv) into the cache at places (T,) int64; -1: nowhere.

    `value`: None where it is the beginning of the key, and `values` a view of `keys`.
    """
    for new, cache in ((key, keys), (value, values)):
        if new is None:
            continue
        assert new.stride(2) == cache.stride(3) == 1, "heads are contiguous"
        size = new.shape[1] * new.shape[2]
        launch(
            _write, (len(new), triton.cdiv(size, _NUMBERS)),
            new, places, cache, *new.stride()[:2], *cache.stride()[:3],
            SIZE=size, DIM=new.shape[2], PAGE=cache.shape[1], NUMBERS=_NUMBERS,
            num_warps=_WARPS, enable_fp_fusion=True,
        )  # fmt: skip


@triton.jit
def _rotate_and_write(
    qkv, cosines, sines, positions, places, query_norm, key_norm,
    query, keys, values, limit, eps, qkv_row, query_row, query_head,
    key_page, key_token, key_head, value_page, value_token, value_head,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIMS: tl.constexpr,
    ROTARY: tl.constexpr, GROUP: tl.constexpr, PAGE: tl.constexpr, INTERLEAVED: tl.constexpr,
    QUERY_NORM: tl.constexpr, KEY_NORM: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    await_earlier(OVERLAPS)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    d = tl.arange(0, DIMS)
    is_query = head < HEADS
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_value = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    real = (head < HEADS + 2 * KV_HEADS)[:, None] & (d < DIM)[None, :]
    row = qkv + token * qkv_row + (head * DIM)[:, None]
    x = tl.load(row + d[None, :], mask=real, other=0.0).to(tl.float32)

    if QUERY_NORM or KEY_NORM:
        factor = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
        x *= _weights(factor, query_norm, key_norm, d, is_query, is_key, DIM, QUERY_NORM, KEY_NORM)
    if ROTARY > 0:
        if INTERLEAVED:
            other, sign = d ^ 1, tl.where(d % 2 == 0, -1.0, 1.0)
        else:
            other, sign = (d + ROTARY // 2) % ROTARY, tl.where(d < ROTARY // 2, -1.0, 1.0)
        turned = d < ROTARY
        y = tl.load(row + other[None, :], mask=real & turned[None, :], other=0.0).to(tl.float32)
        if QUERY_NORM or KEY_NORM:
            y *= _weights(factor, query_norm, key_norm, other, is_query, is_key, DIM, QUERY_NORM, KEY_NORM)
        position = tl.load(positions + token)
        known = tl.where((position >= 0) & (position < limit), ROTARY, 0)
        cosine = tl.load(cosines + position * ROTARY + d, mask=d < known, other=0.0)
        sine = tl.load(sines + position * ROTARY + d, mask=d < known, other=0.0) * sign
        rotated = x * cosine[None, :] + y * sine[None, :]
        x = tl.where((is_query | is_key)[:, None] & turned[None, :], rotated, x)

    x = x.to(query.dtype.element_ty)
    at = query + token * query_row + (head * query_head)[:, None] + d[None, :]
    tl.store(at, x, mask=real & is_query[:, None])
    place = tl.load(places + token)
    if place >= 0:
        kept = x.to(keys.dtype.element_ty)
        at = keys + place // PAGE * key_page + place % PAGE * key_token
        at += ((head - HEADS) * key_head)[:, None] + d[None, :]
        tl.store(at, kept, mask=real & is_key[:, None])
        at = values + place // PAGE * value_page + place % PAGE * value_token
        at += ((head - HEADS - KV_HEADS) * value_head)[:, None] + d[None, :]
        tl.store(at, kept, mask=real & is_value[:, None])


@triton.jit
def _weights(
    factor, query_norm, key_norm, d, is_query, is_key,
    DIM: tl.constexpr, QUERY_NORM: tl.constexpr, KEY_NORM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return what the numbers `d` of every head are multiplied with: 1 where nothing is normed."""
    by = tl.where(is_query[:, None] & is_key[:, None], factor, 1.0)  # ones, of one shape with the rest
    if QUERY_NORM:
        weight = tl.load(query_norm + d, mask=d < DIM, other=0.0).to(tl.float32)
        by = tl.where(is_query[:, None], factor * weight[None, :], by)
    if KEY_NORM:
        weight = tl.load(key_norm + d, mask=d < DIM, other=0.0).to(tl.float32)
        by = tl.where(is_key[:, None], factor * weight[None, :], by)
    return by


@triton.jit
def _write(
    new, places, cache, new_row, new_head,
    page_stride, token_stride, head_stride,
    SIZE: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, NUMBERS: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    await_earlier(OVERLAPS)
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(places + token)
    if place < 0:
        return
    n = tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    head, d = n // DIM, n % DIM
    x = tl.load(new + token * new_row + head * new_head + d, mask=n < SIZE)
    at = cache + place // PAGE * page_stride + place % PAGE * token_stride + head * head_stride + d
    tl.store(at, x.to(cache.dtype.element_ty), mask=n < SIZE)
