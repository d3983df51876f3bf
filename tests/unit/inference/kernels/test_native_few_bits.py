"""The C extension's linears of weights in 4 and 8 bits, beside their products in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor  # noqa: E402

from inference.kernels.native import Library, PackedLinear, WeightKind, open_library  # noqa: E402
from inference.quantised.bits4 import Bits4, pack_codes, whole_numbers  # noqa: E402
from inference.quantised.bits8 import Bits8, bytes_in_8_bits  # noqa: E402
from inference.quantised.codes import Codes  # noqa: E402

pytestmark = pytest.mark.skipif(open_library() is None, reason="the native kernels were not built")
ISAS = ("baseline", "avx2", "avx512")
IN_8_BITS = {"int8": torch.int8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
FORMS = ("zero points", "one zero point", "table", *IN_8_BITS)
OCTETS = torch.arange(256, dtype=torch.uint8)


def library(isa: str, threads: int = 2) -> Library:
    found = open_library(threads, isa)
    if found is None:
        pytest.skip(f"this CPU has no {isa}")
    return found


def weight(n: int, k: int, group: int, form: str, seed: int = 0) -> Codes:
    """Return one of finite numbers."""
    dice = torch.Generator().manual_seed(seed)
    scales = torch.rand(n, -(-k // group), generator=dice) * 0.1 + 0.01
    if form in IN_8_BITS:
        finite = OCTETS[OCTETS.view(IN_8_BITS[form]).float().isfinite()]
        octets = finite[torch.randint(0, len(finite), (n, k), generator=dice)]
        return Bits8(octets.view(IN_8_BITS[form]), group, scales)
    codes = pack_codes(torch.randint(0, 16, (n, k), generator=dice, dtype=torch.uint8))
    if form == "table":
        return Bits4(codes, k, group, scales, torch.randn(16, generator=dice).sort().values)
    several = torch.randint(0, 16, scales.shape, generator=dice)
    return whole_numbers(codes, k, group, scales, several if form == "zero points" else 8)


def packed(isa: str, given: Codes, bias: Tensor | None = None) -> PackedLinear:
    found = given.packable()
    assert found is not None
    return PackedLinear.of_codes(library(isa), found, bias)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 100),
    k=st.integers(1, 300),
    group=st.sampled_from([8, 16, 32, 64, 128, 256, 1000]),
    rows=st.integers(1, 40),
    biased=st.booleans(),
)
def test_products_are_those_of_the_weight(
    isa: str, form: str, n: int, k: int, group: int, rows: int, biased: bool
) -> None:
    own = weight(n, k, group, form)
    bias = torch.randn(n) if biased else None
    x = torch.randn(rows, k)
    wide = own.expand().double()
    expected = x.double() @ wide.T + (0 if bias is None else bias.double())
    terms = x.double().abs() @ wide.abs().T + 1  # whose roundings an output has
    assert bool(((packed(isa, own, bias)(x) - expected).abs() <= 1e-5 * terms).all())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "k"), [(96, 320), (41, 100)])
def test_a_row_has_the_same_bits_beside_any_others(isa: str, form: str, n: int, k: int) -> None:
    linear = packed(isa, weight(n, k, 32, form), torch.randn(n))
    x = torch.randn(60, k)
    whole = linear(x)
    for rows in range(1, 30):
        assert torch.equal(linear(x[:rows]), whole[:rows])
    assert torch.equal(linear(x[17:]), whole[17:])
    x[3], x[20] = torch.inf, torch.nan
    others = [row for row in range(60) if row not in (3, 20)]
    assert torch.equal(linear(x)[others], whole[others])


@pytest.mark.parametrize("form", FORMS)
def test_threads_change_no_bit(form: str) -> None:
    own, x = weight(320, 256, 64, form).packable(), torch.randn(20, 256)
    assert own is not None
    found = [PackedLinear.of_codes(library("auto", threads), own)(x) for threads in (1, 2, 3)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "k", "group"), [(33, 70, 16), (64, 256, 128), (40, 300, 1000)])
def test_the_weight_is_read_back(isa: str, form: str, n: int, k: int, group: int) -> None:
    own = weight(n, k, group, form)
    linear = packed(isa, own)
    assert linear.kind is (WeightKind.BITS8 if form in IN_8_BITS else WeightKind.BITS4)
    assert torch.equal(linear.unpack(), own.expand())
    some = torch.tensor([[n - 1], [0]])
    assert torch.equal(linear.rows(some), own.expand()[some])


def test_it_takes_little_more_than_4_bits_for_a_number() -> None:
    linear = packed("baseline", weight(64, 1024, 128, "one zero point"))
    assert linear.nbytes <= 64 * 1024 * 4.3 / 8


@pytest.mark.parametrize("group", [32, 128, 1024])
def test_in_8_bits_it_takes_what_is_planned(group: int) -> None:
    linear = packed("baseline", weight(64, 1024, group, "int8"))
    assert 64 * 1024 < linear.nbytes <= bytes_in_8_bits(64, 1024, group)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", IN_8_BITS)
@pytest.mark.parametrize("rows", [1, 7, 30], ids=["one row", "a block", "blocks"])
def test_each_code_is_the_number_that_it_stands_for(isa: str, form: str, rows: int) -> None:
    """Denormals aren't zero, and NaN and infinities stay what they are."""
    own = Bits8(OCTETS.view(IN_8_BITS[form])[:, None].repeat(1, 5), 5, torch.ones(256, 1))
    x = torch.zeros(rows, 5)
    x[:, 2] = 1.5
    found = packed(isa, own)(x)
    expected = (own.expand() @ x.T).T  # where zeros times infinities are no numbers, too
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("isa", ISAS)
def test_e4m3_that_is_no_number_makes_outputs_that_are_none(isa: str) -> None:
    own = weight(40, 300, 64, "e4m3")
    own.codes.view(torch.uint8)[7, 200] = 255
    found = packed(isa, own)(torch.randn(3, 300))
    assert found.isnan().all(0).nonzero().flatten().tolist() == [7]
    assert int(found.isnan().sum()) == 3


@pytest.mark.parametrize("kind", [WeightKind.BITS4, WeightKind.BITS8])
def test_a_plain_weight_is_not_packed_so_as_nothing_says_how(kind: WeightKind) -> None:
    with pytest.raises(ValueError, match=f"weights in {kind} are packed by `of_codes`"):
        PackedLinear.pack(library("auto"), torch.randn(32, 32), None, kind)
