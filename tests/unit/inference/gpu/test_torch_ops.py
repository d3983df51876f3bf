"""The oracles are written in float64 here, or transformers' own functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor  # noqa: E402
from torch import dtype as Dtype  # noqa: E402
from torch.nn.functional import gelu, silu  # noqa: E402
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as rotate_neighbours  # noqa: E402
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as rotate_halves  # noqa: E402

from inference.gpu.batch import DeviceBatch  # noqa: E402
from inference.gpu.torch_ops import TorchOps  # noqa: E402
from inference.kernels.reference import Attention  # noqa: E402
from inference.kv_cache.blocks import PAGE  # noqa: E402
from tests.unit.inference.paged_attention import Tokens, expected, page_count, page_table, tokens  # noqa: E402

OPS = TorchOps()
DTYPES = {torch.float32: 1e-6, torch.bfloat16: 1e-2}
PADDING = (-1, 0, 1)  # the piece of a graph's row that nobody has


def numbers(*shape: int, dtype: Dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def near(found: Tensor, wanted: Tensor, tolerance: float) -> bool:
    return bool((found.double() - wanted.double()).norm() <= tolerance * wanted.double().norm())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norm_of_a_sum_is_rounded_once(dtype: Dtype) -> None:
    x, stream, weight = numbers(5, 48, dtype=dtype), numbers(5, 48, dtype=dtype, seed=1), numbers(48, seed=2)
    normed, added = OPS.add_rms_norm(x, stream, weight, 1e-5, 0.3)
    assert torch.equal(added, (stream.float() + 0.3 * x.float()).to(dtype))
    wide = added.double()
    wanted = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert normed.dtype == dtype
    assert near(normed, wanted, DTYPES[dtype])
    assert torch.equal(OPS.rms_norm(added, weight, 1e-5), normed)


@pytest.mark.parametrize(
    ("name", "function"),
    [("silu", silu), ("gelu", gelu), ("gelu_tanh", lambda x: gelu(x, approximate="tanh"))],
)
def test_gate_multiplies_its_activation_with_up(name: str, function: object) -> None:
    both = numbers(7, 66)
    assert callable(function)
    assert near(OPS.gated(both, name), function(both[:, :33].double()) * both[:, 33:].double(), 1e-6)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("rotary", [16, 8])
@pytest.mark.parametrize("interleaved", [False, True])
def test_queries_and_keys_are_rotated_as_transformers_does(
    interleaved: bool, rotary: int, normed: bool
) -> None:
    heads, kv_heads, dim, positions = 4, 2, 16, torch.tensor([5, 0, 39])
    angles = torch.arange(40)[:, None] * 0.7 ** torch.arange(rotary // 2)
    halves = torch.cat([angles, angles], 1)
    tables = angles.repeat_interleave(2, 1) if interleaved else halves
    qkv = numbers(3, (heads + 2 * kv_heads) * dim)
    weights = (numbers(dim, seed=3), numbers(dim, seed=4)) if normed else (None, None)
    keys, values = (torch.full((4, PAGE, kv_heads, dim), torch.nan) for _ in range(2))
    places = torch.tensor([17, 40, 3])
    query = OPS.rope_and_write(
        qkv, tables.cos(), tables.sin(), positions, places, keys, values, heads, kv_heads,
        interleaved=interleaved, query_norm=weights[0], key_norm=weights[1], eps=1e-6,
    )  # fmt: skip
    q, k, v = qkv.view(3, -1, dim).split([heads, kv_heads, kv_heads], 1)
    if normed:
        q, k = (
            x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w
            for x, w in zip((q, k), weights, strict=True)
        )
    rotate = rotate_neighbours if interleaved else rotate_halves
    cos, sin = halves[positions].cos()[None], halves[positions].sin()[None]
    parts = [x.transpose(0, 1)[None] for x in (q, k)]
    if interleaved:
        wanted = rotate(*parts, cos, sin)  # it passes on what isn't rotated
    else:
        turned = rotate(*(part[..., :rotary] for part in parts), cos, sin)
        wanted = [torch.cat([new, old[..., rotary:]], -1) for new, old in zip(turned, parts, strict=True)]
    assert near(query, wanted[0][0].transpose(0, 1), 1e-6)
    assert near(keys.flatten(0, 1)[places], wanted[1][0].transpose(0, 1), 1e-6)
    assert torch.equal(values.flatten(0, 1)[places], v)
    assert int(keys.flatten(0, 1).isfinite().all(-1).all(-1).sum()) == 3


def test_without_a_rotation_heads_are_only_written() -> None:
    keys, values = torch.zeros(2, PAGE, 1, 4), torch.zeros(2, PAGE, 1, 4)
    qkv, places = numbers(2, 12), torch.tensor([1, -1])
    query = OPS.rope_and_write(qkv, None, None, places, places, keys, values, 1, 1)
    assert torch.equal(query, qkv[:, None, :4])
    assert torch.equal(keys.flatten(0, 1)[1, 0], qkv[0, 4:8])
    assert torch.equal(values.flatten(0, 1)[1, 0], qkv[0, 8:])
    touched = values.flatten(0, 1)[:, 0].any(-1).nonzero().flatten().tolist()
    assert touched == [1, 2 * PAGE - 1]  # the last place is nobody's


def test_each_head_is_multiplied_by_its_own_weight() -> None:
    x, weight = numbers(5, 3, 24), numbers(3, 24, 10, seed=1).transpose(1, 2)
    wanted = torch.einsum("thk,hnk->thn", x.double(), weight.double())
    assert near(OPS.multiply_heads(x, weight), wanted, 1e-6)
    wider = torch.full((5, 3, 12), torch.nan)
    assert torch.equal(OPS.multiply_heads(x, weight, wider[..., :10]), wider[..., :10])
    assert near(wider[..., :10], wanted, 1e-6)
    assert wider[..., 10:].isnan().all()


@pytest.mark.parametrize("start", [19, 3])
def test_latents_lie_in_the_cache_once(start: int) -> None:
    made = tokens(20, 4, 1, 24)
    sequence = Tokens(made.query, made.key, made.key[..., :16])
    keys = torch.full((3, PAGE, 1, 24), torch.nan)
    table = torch.tensor([[1, 0]])
    places = (table[0][:, None] * PAGE + torch.arange(PAGE)).flatten()[:20]
    OPS.write(sequence.key, None, places, keys, keys[..., :16])
    assert torch.equal(keys.flatten(0, 1)[places], sequence.key)
    batch = Paper([sequence]).batch([(0, start, 20)], table)
    how = Attention(scaling=0.2, latent=True)
    found = OPS.paged_attention(sequence.query[start:], keys, keys[..., :16], batch, how)
    assert near(found, expected(sequence, how)[start:], 1e-5)


@dataclass(frozen=True, slots=True)
class Paper:
    """Sequences in a cache that has NaN wherever nothing of theirs is."""

    sequences: list[Tokens]

    def attend(self, pieces: list[tuple[int, int, int]], how: Attention) -> Tensor:
        lengths = [sequence.length for sequence in self.sequences]
        table = torch.from_numpy(page_table(lengths, 2, seed=1))
        first = self.sequences[0]
        keys, values = (
            torch.full((page_count(lengths, 2) + 1, PAGE, *each.shape[1:]), torch.nan)
            for each in (first.key, first.value)
        )
        for index, _, stop in pieces:
            places = (table[index][:, None].long() * PAGE + torch.arange(PAGE)).flatten()[:stop]
            if index >= 0:
                OPS.write(
                    self.sequences[index].key[:stop], self.sequences[index].value[:stop], places, keys, values
                )
        query = torch.cat(
            [self.sequences[i].query[a:b] if i >= 0 else first.query[:1] * torch.nan for i, a, b in pieces]
        )
        return OPS.paged_attention(query, keys, values, self.batch(pieces, table), how)

    def batch(self, pieces: list[tuple[int, int, int]], table: Tensor) -> DeviceBatch:
        sizes = torch.tensor([0, *(stop - start for _, start, stop in pieces)])
        nothing = torch.empty(0, dtype=torch.int64)
        return DeviceBatch(
            ids=nothing,
            positions=nothing,
            places=nothing,
            tables=table,
            slots=torch.tensor([max(index, 0) for index, *_ in pieces], dtype=torch.int32),
            starts=sizes.cumsum(0).int(),
            lengths=torch.tensor([stop if i >= 0 else 0 for i, _, stop in pieces], dtype=torch.int32),
            query_blocks=nothing,
            tile=1,
            rows=None,
            longest=int(sizes.max()),
            splits=1,
        )


@st.composite
def steps(draw: st.DrawFn) -> tuple[Paper, list[tuple[int, int, int]], Attention]:
    kv_heads, group = draw(st.sampled_from([(1, 1), (2, 3), (1, 4)]))
    dim, value_dim = draw(st.sampled_from([(16, 16), (24, 8)]))
    lengths = draw(st.lists(st.integers(1, 60), min_size=1, max_size=3))
    most = draw(st.sampled_from([1, 12]))
    pieces = [(i, n - draw(st.integers(1, min(n, most))), n) for i, n in enumerate(lengths)]
    pieces += [PADDING] * draw(st.integers(0, 2))
    slopes = torch.logspace(-2, 0, kv_heads * group) if draw(st.booleans()) else None
    how = Attention(
        scaling=0.2,
        window=draw(st.none() | st.integers(1, 40)),
        chunk=draw(st.none() | st.integers(1, 40)),
        softcap=None if slopes is not None else draw(st.none() | st.just(2.0)),
        slopes=slopes,
        sinks=torch.linspace(-2, 2, kv_heads * group) if draw(st.booleans()) else None,
    )
    sequences = [tokens(n, kv_heads * group, kv_heads, dim, value_dim, seed=i) for i, n in enumerate(lengths)]
    return Paper(sequences), draw(st.permutations(pieces)), how


@settings(deadline=None, max_examples=60)
@given(steps())
def test_a_step_attends_as_whole_sequences_would(
    step: tuple[Paper, list[tuple[int, int, int]], Attention],
) -> None:
    paper, pieces, how = step
    found, row = paper.attend(pieces, how), 0
    for index, start, stop in pieces:
        part = found[row : row + stop - start]
        if index < 0:
            assert not part.any()
        else:
            assert near(part, expected(paper.sequences[index], how)[start:stop], 1e-5)
        row += stop - start


def test_padding_leaves_the_bits_of_others() -> None:
    paper, how = Paper([tokens(20, 2, 1, 16), tokens(33, 2, 1, 16)]), Attention(scaling=0.2)
    alone = paper.attend([(0, 19, 20), (1, 32, 33)], how)
    beside = paper.attend([(0, 19, 20), PADDING, (1, 32, 33)], replace(how))
    assert torch.equal(beside[[0, 2]], alone)
