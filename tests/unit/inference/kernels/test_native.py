"""Linears and row statistics of the C extension, on every ISA that this CPU has, beside torch in float64."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.kernels import native
from inference.kernels.kinds import IN_FEW_BITS
from inference.kernels.native import STEPS, Library, PackedLinear, WeightKind, narrowest, open_library
from inference.kernels.native_rows import row_statistics
from inference.kernels.structs import LibraryStruct
from tests.isas import ISAS

ROOT = Path(__file__).parents[4]
EXACT = (WeightKind.FLOAT32, WeightKind.BFLOAT16, WeightKind.FLOAT16)
DTYPES = {
    WeightKind.FLOAT32: torch.float32,
    WeightKind.BFLOAT16: torch.bfloat16,
    WeightKind.FLOAT16: torch.float16,
}
pytestmark = pytest.mark.skipif(native.library_path() is None, reason="the extension wasn't built: no GCC")
every_isa = pytest.mark.parametrize("isa", ISAS)
# What is in few bits has tests of its own: nothing is packed so from other numbers
every_kind = pytest.mark.parametrize("kind", [kind for kind in WeightKind if kind not in IN_FEW_BITS])
sizes = st.integers(1, 70) | st.sampled_from([127, 128, 129, 1024, 1030, 2500])


@cache
def library(isa: str, threads: int = 2) -> Library:
    """Return a handle that all tests share."""
    opened = open_library(threads, isa)
    if opened is None:
        pytest.skip(f"this CPU has no {isa}")
    return opened


def library_for(kind: WeightKind, isa: str, threads: int = 2) -> Library:
    """Return the same, where it has the kind."""
    opened = library(isa, threads)
    if kind is WeightKind.INT6 and not opened.has_vnni:
        pytest.skip("int6 needs VPDPBUSD")
    return opened


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return the same random numbers for the same arguments."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Tell whether the bits are the same, of NaN too."""
    return torch.equal(left.view(torch.int32), right.view(torch.int32))


def quantized(x: torch.Tensor) -> torch.Tensor:
    """Return what int8 leaves of each row of x."""
    scale = x.double().abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return (x.double() / scale).round() * scale


@every_isa
@every_kind
@settings(max_examples=12, deadline=None)
@given(n=sizes, k=sizes, rows=st.integers(0, 60), with_bias=st.booleans(), seed=st.integers(0, 99))
def test_a_linear_multiplies(
    isa: str, kind: WeightKind, n: int, k: int, rows: int, with_bias: bool, seed: int
) -> None:
    x, weight = randn(rows, k, seed=seed), randn(n, k, seed=seed + 1)
    bias = randn(n, seed=seed + 2) if with_bias else None
    linear = PackedLinear.pack(library_for(kind, isa), weight, bias, kind)
    inputs = quantized(x) if kind in STEPS else x.double()
    expected = inputs @ linear.unpack().double().T + (0 if bias is None else bias.double())
    tolerance = 1e-6 * k  # of k products that are about 1
    if kind in STEPS and rows:  # a value halfway between two integers may be rounded otherwise
        tolerance += 2 * (x.abs().max() * weight.abs().max()).item() / 127
    torch.testing.assert_close(linear(x).double(), expected, rtol=0, atol=tolerance)


@every_isa
@every_kind
@pytest.mark.parametrize("round_inputs", [False, True])
@settings(max_examples=8, deadline=None)
@given(n=sizes, k=sizes, rows=st.integers(2, 130), threads=st.integers(1, 4), seed=st.integers(0, 99))
def test_a_row_has_the_same_bits_in_any_batch_and_by_any_threads(
    isa: str, kind: WeightKind, round_inputs: bool, n: int, k: int, rows: int, threads: int, seed: int
) -> None:
    x, weight, bias = randn(rows, k, seed=seed), randn(n, k, seed=seed + 1), randn(n, seed=seed + 2)
    together = PackedLinear.pack(
        library_for(kind, isa, threads), weight, bias, kind, round_inputs=round_inputs
    )(x)
    alone = PackedLinear.pack(library(isa, 1), weight, bias, kind, round_inputs=round_inputs)
    first = seed % rows
    assert same(alone(x[first]), together[first])
    assert same(alone(x[first : first + 7]), together[first : first + 7])
    assert same(alone(x.flip(0)).flip(0), together)


@every_isa
@every_kind
def test_a_row_that_is_not_finite_spoils_no_other(isa: str, kind: WeightKind) -> None:
    linear = PackedLinear.pack(library_for(kind, isa), randn(40, 50), None, kind)
    x = randn(5, 50)
    spoilt = x.clone()
    spoilt[1, 3], spoilt[3, 49] = float("nan"), float("inf")
    y = linear(spoilt)
    assert same(linear(x)[[0, 2, 4]], y[[0, 2, 4]])
    assert y[1].isnan().all()
    assert not y[3].isfinite().any()


@every_isa
def test_int8_of_zeros_is_the_bias(isa: str) -> None:
    bias = randn(33)
    linear = PackedLinear.pack(library(isa), torch.zeros(33, 9), bias, WeightKind.INT8)
    assert torch.equal(linear(torch.zeros(2, 9)), bias.expand(2, 33))
    assert torch.equal(linear(randn(2, 9)), bias.expand(2, 33))


def test_int8_without_vnni_gives_the_same_bits() -> None:
    with_vnni, without = library("avx512"), open_library(1, "avx512")
    assert without is not None
    LibraryStruct.from_address(without.handle.value or 0).vnni = 0
    x, weight, bias = randn(13, 130), randn(50, 130), randn(50)
    outputs = [PackedLinear.pack(one, weight, bias, WeightKind.INT8)(x) for one in (with_vnni, without)]
    assert same(*outputs)


@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 11, 40])
@pytest.mark.parametrize("k", [1, 7, 64, 130, 1031])
def test_int8_gives_the_same_bits_on_every_isa(isa: str, rows: int, k: int) -> None:
    x, weight, bias = randn(rows, k), randn(50, k, seed=1), randn(50, seed=2)
    x[0, 0] = weight[0, 0] = -9.0  # the greatest of its row: -127
    outputs = [PackedLinear.pack(library(one), weight, bias, WeightKind.INT8)(x) for one in ("baseline", isa)]
    assert same(*outputs)


@every_isa
@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_sums_of_integers_are_exact_at_the_greatest_values(isa: str, kind: WeightKind, sign: float) -> None:
    greatest = 127.0 // STEPS[kind] * STEPS[kind]
    weight = torch.full((32, 1 << 16), greatest)
    opened = library_for(kind, isa)
    linear = PackedLinear.pack(opened, weight, None, kind)
    expected = torch.full((1, 32), sign * greatest * 127 * 2**16)
    assert torch.equal(linear(torch.full((1, 1 << 16), sign * 127)), expected)
    with pytest.raises(ValueError, match=f"{kind} .*65536 inputs at most, not 65537"):
        PackedLinear.pack(opened, torch.ones(1, (1 << 16) + 1), None, kind)


@pytest.mark.parametrize("isa", ["avx512", "amx"])
@pytest.mark.parametrize("k", [1, 7, 8, 9, 64, 1031])
def test_int6_is_int8_of_multiples_of_four(isa: str, k: int) -> None:
    opened = library_for(WeightKind.INT6, isa)
    random = torch.Generator().manual_seed(k)
    rows = 4 * torch.randint(-31, 32, (70, k), generator=random, dtype=torch.int8)
    scales = torch.rand(70, generator=random)
    packed = [
        PackedLinear.of_integers(opened, rows, scales, kind) for kind in (WeightKind.INT8, WeightKind.INT6)
    ]
    assert torch.equal(packed[1].unpack(), rows * scales[:, None])
    for count in (1, 2, 3, 12, 13, 40):
        x = randn(count, k, seed=count)
        assert same(*(linear(x) for linear in packed))
    int8, int6 = (linear.nbytes - 96 * 8 for linear in packed)  # whole panels' scales and sums
    assert k % 8 or int6 == 0.75 * int8


def test_int6_needs_its_instruction() -> None:
    with pytest.raises(ValueError, match="need a CPU with AVX-512 VNNI"):
        PackedLinear.pack(library("avx2"), randn(40, 8), None, WeightKind.INT6)


@pytest.mark.parametrize("isa", ["avx512", "amx"])
def test_rounded_inputs_are_those_of_bfloat16(isa: str) -> None:
    opened = library(isa)
    if not opened.has_bf16:
        pytest.skip("this CPU multiplies no bfloat16")
    x, weight = randn(9, 300), randn(70, 300).bfloat16()
    linear = PackedLinear.pack(opened, weight, None, WeightKind.BFLOAT16, round_inputs=True)
    expected = x.bfloat16().double() @ weight.double().T
    torch.testing.assert_close(linear(x).double(), expected, rtol=0, atol=3e-4)


def test_the_best_isa_is_the_last_one_that_the_cpu_has() -> None:
    last = [isa for isa in ISAS if open_library(1, isa) is not None][-1]
    best = open_library(1)
    assert best is not None
    assert best.isa == last
    assert repr(best).startswith(f"<Library {last}")


@every_isa
@pytest.mark.parametrize("kind", EXACT)
def test_packing_loses_nothing(isa: str, kind: WeightKind) -> None:
    weight = randn(45, 31).to(DTYPES[kind])
    weight[0, :4] = torch.tensor([float("inf"), -0.0, 1e-7, 65504.0]).to(DTYPES[kind])
    linear = PackedLinear.pack(library(isa), weight, None, kind)
    assert torch.equal(weight, linear.unpack())
    ids = torch.tensor([[44, 0], [7, 44]])
    assert torch.equal(weight[ids], linear.rows(ids))
    with pytest.raises(IndexError, match="from 0 to 44"):
        linear.rows(torch.tensor([45]))


@every_isa
def test_float16_is_widened_exactly(isa: str) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.float16).reshape(-1, 1)
    weight = torch.where(every.isnan(), 0.0, every)
    linear = PackedLinear.pack(library(isa), weight, None, WeightKind.FLOAT16)
    assert torch.equal(weight.float().T, linear(torch.ones(1, 1)))


@every_isa
def test_inputs_may_have_any_strides_and_shape(isa: str) -> None:
    linear = PackedLinear.pack(library(isa), randn(20, 16), None, WeightKind.FLOAT32)
    wide = randn(2, 3, 40)
    assert same(linear(wide[..., 8:24].clone()), linear(wide[..., 8:24]))
    turned = randn(16, 5).T
    assert same(linear(turned.contiguous()), linear(turned))
    assert (2, 3, 20) == linear(wide[..., :16]).shape
    with pytest.raises(TypeError, match="float32"):
        linear(turned.double())


def test_what_is_small_is_zero_in_every_thread_and_only_there() -> None:
    tiny = torch.full((64, 8192), 1e-20)  # products are 1e-40, their sum 8e-37
    for threads in (1, 3):
        linear = PackedLinear.pack(library("baseline", threads), tiny, None, WeightKind.FLOAT32)
        assert same(torch.zeros(8, 64), linear(tiny[:8]))
    assert torch.tensor(1e-20).mul(1e-20).item() > 0  # the caller's own arithmetic is as before


def test_many_threads_may_call_at_once() -> None:
    linear = PackedLinear.pack(library("baseline", 3), randn(300, 200), None, WeightKind.FLOAT32)
    inputs = [randn(6, 200, seed=seed) for seed in range(40)]
    expected = [linear(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(same, expected, pool.map(linear, inputs)))


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # Python 3.12 and later
def test_a_forked_child_computes_alone() -> None:
    linear = PackedLinear.pack(library("baseline", 3), randn(300, 200), None, WeightKind.FLOAT32)
    x = randn(6, 200)
    expected = linear(x)
    child = os.fork()
    if not child:
        os._exit(0 if same(expected, linear(x)) else 1)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_the_narrowest_kind_holds_every_value() -> None:
    weight = randn(8, 8)
    assert WeightKind.FLOAT32 is narrowest(weight)
    assert WeightKind.BFLOAT16 is narrowest(weight.bfloat16())
    assert WeightKind.BFLOAT16 is narrowest(weight.bfloat16().float())
    assert WeightKind.FLOAT16 is narrowest(weight.half())
    assert WeightKind.FLOAT16 is narrowest(weight.half().float())
    assert WeightKind.BFLOAT16 is narrowest(torch.full((1, 1), 2.0**100))
    assert WeightKind.FLOAT32 is narrowest(torch.tensor([[2.0**100, 1 + 2.0**-10]]))


@every_isa
@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 5),
    columns=st.sampled_from([1, 2, 15, 16, 17, 63, 1000, 8191, 8192, 8193, 20_000]),
    scale=st.sampled_from([0.01, 1.0, 30.0, 1e6]),
    places=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 19_999), st.sampled_from(["inf", "-inf", "nan", "1e9"])),
        max_size=4,
    ),
)
def test_the_statistics_of_rows(
    isa: str, rows: int, columns: int, scale: float, places: list[tuple[int, int, str]]
) -> None:
    logits = randn(rows, columns, seed=columns) * scale
    for row, column, value in places:
        logits[row % rows, column % columns] = float(value)
    index, maximum, logsumexp = row_statistics(library(isa, 3), logits)
    assert torch.equal(index, torch.tensor([_first_maximum(row) for row in logits]))
    torch.testing.assert_close(maximum, logits.amax(1), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(
        logsumexp.double(), logits.double().logsumexp(1), rtol=1e-6, atol=1e-6, equal_nan=True
    )
    for row in range(rows):
        alone = row_statistics(library(isa, 1), logits[row : row + 1])
        assert same(alone[2], logsumexp[row : row + 1])


def _first_maximum(row: torch.Tensor) -> int:
    strange = row.isnan().nonzero()
    return int(strange[0]) if len(strange) else int((row == row.max()).nonzero()[0])


@every_isa
def test_of_equal_maxima_the_lowest_index_counts(isa: str) -> None:
    logits = torch.zeros(1, 30_000)
    logits[0, [9_000, 20_000, 29_999]] = 5.0
    assert 9_000 == row_statistics(library(isa, 3), logits)[0].item()
    assert 0 == row_statistics(library(isa), torch.full((1, 9000), -float("inf")))[0].item()


def test_without_the_extension_the_reason_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    broken = tmp_path / "_cpu.so"
    broken.write_bytes(b"no library")
    with caplog.at_level(logging.WARNING):
        for path, reason in ((None, "wasn't built"), (broken, "can't be used")):
            monkeypatch.setattr(native, "library_path", lambda path=path: path)
            assert open_library() is None
            assert reason in caplog.messages[-1]


def test_an_unknown_isa_is_an_error() -> None:
    with pytest.raises(ValueError, match="'avx9'"):
        open_library(1, "avx9")


def test_thread_that_outlives_the_interpreter_can_still_compute() -> None:
    code = """
import atexit
atexit.register(lambda: print(linear(x).sum().item(), flush=True))  # after whatever is registered later
import torch
from inference.kernels.native import PackedLinear, WeightKind, open_library
linear = PackedLinear.pack(open_library(2), torch.ones(500, 500), None, WeightKind.FLOAT32)
x = torch.ones(1, 500)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "250000.0\n"), done.stderr
