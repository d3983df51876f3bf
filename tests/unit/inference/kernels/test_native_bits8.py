"""The C extension's linears of weights in 8 bits, beside their products in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor  # noqa: E402

from inference.kernels.native import PackedLinear, WeightKind, open_library  # noqa: E402
from inference.quantised.bits8 import Bits8, bytes_in_8_bits  # noqa: E402
from tests.unit.inference.kernels.native_libraries import library  # noqa: E402

pytestmark = pytest.mark.skipif(open_library() is None, reason="the native kernels were not built")
ISAS = ("baseline", "avx2", "avx512")
DTYPES = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)
ALL = torch.arange(256, dtype=torch.uint8)


def weight(n: int, k: int, group: int, dtype: torch.dtype, seed: int = 0) -> Bits8:
    """Return one of finite numbers."""
    dice = torch.Generator().manual_seed(seed)
    finite = ALL[ALL.view(dtype).float().isfinite()]
    codes = finite[torch.randint(0, len(finite), (n, k), generator=dice)].view(dtype)
    return Bits8(codes, group, torch.rand(n, -(-k // group), generator=dice) * 0.1 + 0.01)


def packed(isa: str, given: Bits8, bias: Tensor | None = None) -> PackedLinear:
    found = given.packable()
    assert found is not None
    return PackedLinear.of_codes(library(isa), found, bias)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 100),
    k=st.integers(1, 300),
    group=st.sampled_from([8, 16, 32, 64, 128, 256, 1000]),
    rows=st.integers(1, 40),
    biased=st.booleans(),
)
def test_products_are_those_of_the_weight(
    isa: str, dtype: torch.dtype, n: int, k: int, group: int, rows: int, biased: bool
) -> None:
    own = weight(n, k, group, dtype)
    bias = torch.randn(n) if biased else None
    x = torch.randn(rows, k)
    wide = own.expand().double()
    expected = x.double() @ wide.T + (0 if bias is None else bias.double())
    terms = x.double().abs() @ wide.abs().T + 1  # whose roundings an output has
    assert bool(((packed(isa, own, bias)(x) - expected).abs() <= 1e-5 * terms).all())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 30], ids=["one row", "a block", "blocks"])
def test_each_code_is_the_number_that_it_stands_for(isa: str, dtype: torch.dtype, rows: int) -> None:
    """Denormals are not zero, and NaN and infinities stay what they are."""
    own = Bits8(ALL.view(dtype)[:, None].repeat(1, 5), 5, torch.ones(256, 1))
    x = torch.zeros(rows, 5)
    x[:, 2] = 1.5
    expected = own.expand() @ x[:1].T  # zeros times infinities are no number there, too
    assert torch.equal(packed(isa, own)(x).nan_to_num(nan=-1.25), expected.T.expand(rows, -1).nan_to_num(nan=-1.25))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), [(96, 320), (41, 100)])
def test_a_row_has_the_same_bits_beside_any_others(isa: str, dtype: torch.dtype, n: int, k: int) -> None:
    linear = packed(isa, weight(n, k, 32, dtype), torch.randn(n))
    x = torch.randn(60, k)
    whole = linear(x)
    for rows in range(1, 30):
        assert torch.equal(linear(x[:rows]), whole[:rows])
    assert torch.equal(linear(x[17:]), whole[17:])
    x[3], x[20] = torch.inf, torch.nan
    others = [row for row in range(60) if row not in (3, 20)]
    assert torch.equal(linear(x)[others], whole[others])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_change_no_bit(dtype: torch.dtype) -> None:
    own, x = weight(320, 256, 64, dtype), torch.randn(20, 256)
    found = [PackedLinear.of_codes(library("auto", threads), own)(x) for threads in (1, 2, 3)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k", "group"), [(33, 70, 16), (64, 256, 128), (40, 300, 1000)])
def test_the_weight_is_read_back(isa: str, dtype: torch.dtype, n: int, k: int, group: int) -> None:
    own = weight(n, k, group, dtype)
    linear = packed(isa, own)
    assert linear.kind is WeightKind.BITS8
    assert torch.equal(linear.unpack(), own.expand())
    some = torch.tensor([[n - 1], [0]])
    assert torch.equal(linear.rows(some), own.expand()[some])
    again = linear.codes()
    assert isinstance(again, Bits8)
    assert torch.equal(again.codes.view(torch.uint8), own.codes.view(torch.uint8))


@pytest.mark.parametrize("group", [32, 128, 1024])
def test_it_takes_what_was_planned(group: int) -> None:
    linear = packed("baseline", weight(64, 1024, group, torch.int8))
    assert 64 * 1024 < linear.nbytes <= bytes_in_8_bits(64, 1024, group)


def test_a_plain_weight_is_not_packed_so_as_nothing_says_how() -> None:
    with pytest.raises(ValueError, match="weights in 8 bits are packed by `of_codes`"):
        PackedLinear.pack(library("auto"), torch.randn(32, 32), None, WeightKind.BITS8)
