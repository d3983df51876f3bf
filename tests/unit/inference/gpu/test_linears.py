from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.nn.functional import gelu, linear  # noqa: E402

from inference.gpu.linears import Deadline, DeviceLinear, Multiplier, SwappedLinear, device_linear  # noqa: E402
from inference.gpu.ops import GatedWay, Way, Weight  # noqa: E402
from inference.gpu.torch_ops import TorchOps  # noqa: E402
from inference.quantised.bits4 import Bits4  # noqa: E402
from inference.quantised.blocks import Blocks, Numbers  # noqa: E402
from inference.quantised.rounding4 import round_rows  # noqa: E402


class Ways(TorchOps):
    """Torch's operations with more ways to multiply, each of which says that it was called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def ways(self, rows: int, weight: Weight) -> Iterator[Way]:
        yield Way("fast", self._way("fast", lambda x, w, b: linear(x, w, b)))
        yield Way("faster", self._way("faster", lambda x, w, b: linear(x, w, b)))
        yield Way("wrong", self._way("wrong", lambda x, w, b: linear(x, w, b) * 1.1))
        yield Way("failing", self._way("failing", lambda x, w, b: linear(x, w[:, 1:], b)))

    def gated_ways(self, rows: int, weight: Weight) -> Iterator[GatedWay]:
        def run(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
            self.called.append("gate")
            return self.gated(linear(x, weight, bias), activation)

        yield GatedWay("gate", run)

    def _way(
        self, name: str, multiply: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    ) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
        def run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            self.called.append(name)
            return multiply(x, weight, bias)

        return run


class Clock:
    """Says of each way what a test wants it to take."""

    def __init__(self, ops: Ways, taken: dict[str, float]) -> None:
        self._ops = ops
        self._taken = taken

    def __call__(self, run: Callable[[], object]) -> float:
        before = len(self._ops.called)
        run()
        names = set(self._ops.called[before:]) or {""}
        assert len(names) == 1
        return self._taken[names.pop()]


def linears(multiply: Multiplier, *shapes: tuple[int, int]) -> list[DeviceLinear]:
    return [DeviceLinear(multiply, torch.randn(shape), None) for shape in shapes]


TAKEN = {"": 1.0, "fast": 0.8, "faster": 0.5, "wrong": 0.1, "failing": 0.1}


def test_fastest_way_that_computes_the_same_is_chosen_for_each_shape_and_size() -> None:
    ops = Ways()
    multiply = Multiplier(ops)
    first, second, other = linears(multiply, (6, 4), (6, 4), (3, 4))
    multiply.tune([first, second, other], [], "", [2, 1, 300], Clock(ops, TAKEN), bool)
    assert str(multiply) == "Shapes of linears, measured for up to 256 tokens: 4 by faster, others as ever"
    for rows, expected in ((1, ["faster"]), (2, ["faster"]), (3, []), (300, [])):
        ops.called.clear()
        x = torch.randn(rows, 4)
        assert torch.equal(second(x), linear(x, second.weight))
        assert expected == ops.called


def test_what_is_there_stays_where_nothing_is_faster() -> None:
    ops = Ways()
    multiply = Multiplier(ops)
    (only,) = linears(multiply, (6, 4))
    multiply.choose([only], 1, Clock(ops, {**TAKEN, "": 0.5}))
    assert str(multiply) == ""
    ops.called.clear()
    only(torch.randn(1, 4))
    assert ops.called == []


def test_all_linears_of_a_shape_are_measured_in_turn() -> None:
    ops = Ways()
    multiply = Multiplier(ops)
    alike = linears(multiply, *[(6, 4)] * 5)
    counts: list[int] = []

    def clock(run: Callable[[], object]) -> float:
        result = run()
        assert isinstance(result, list)
        counts.append(len({each.data_ptr() for each in result}))
        return 1.0

    multiply.choose(alike, 1, clock)
    assert set(counts) == {5}


def test_ways_of_torch_alone_leave_nothing_to_choose() -> None:
    multiply = Multiplier(TorchOps())
    only = linears(multiply, (6, 4))
    multiply.tune(only, only, "silu", [1, 2], lambda run: 1.0, bool)
    assert str(multiply) == ""


def test_the_fewest_tokens_are_measured_first_and_nothing_once_the_time_is_over() -> None:
    ops = Ways()
    multiply = Multiplier(ops)
    only = linears(multiply, (6, 4))
    left = iter([False] * 5 + [True] * 100)  # the ways of one size, and the gate's
    multiply.tune(only, only, "silu", [8, 2], Clock(ops, {**TAKEN, "gate": 0.1}), lambda: next(left))
    said = "Shapes of linears, measured for up to 256 tokens: 1 by faster, 1 by gate, others as ever"
    assert str(multiply) == f"{said}; there was no time to measure 5 ways"
    for rows, expected in ((2, ["gate"]), (8, [])):
        ops.called.clear()
        only[0].gated(torch.randn(rows, 4), "silu")
        assert expected == ops.called


def test_all_ways_are_compiled_before_the_first_is_measured() -> None:
    class Kernels(Ways):
        captures = True

        def ways(self, rows: int, weight: Weight) -> Iterator[Way]:
            yield from list(super().ways(rows, weight))[:2]

    ops, before = Kernels(), []
    multiply = Multiplier(ops)
    first, other = linears(multiply, (6, 4), (4, 4))

    def clock(run: Callable[[], object]) -> float:
        before.append(list(ops.called))
        return 1.0

    multiply.tune([first, other], [first], "silu", [1, 2], clock, bool)
    assert before[0] == ["fast", "faster", "fast", "faster", "gate"] * 2


def test_size_of_many_rows_is_computed_as_the_next_one_that_is_measured() -> None:
    ops = Ways()
    multiply = Multiplier(ops)
    (only,) = linears(multiply, (6, 4))
    measured: list[int] = []

    def clock(run: Callable[[], object]) -> float:
        result = run()
        assert isinstance(result, list)
        measured.append(len(result[0]))
        return Clock(ops, TAKEN)(run)

    multiply.tune([only], [], "", [24, 32, 40, 72, 500], clock, bool)
    assert [32, 64, 72] == sorted(set(measured))
    assert str(multiply).endswith(": 3 by faster, others as ever")
    for rows, expected in ((24, ["faster"]), (40, ["faster"]), (72, ["faster"]), (41, []), (500, [])):
        ops.called.clear()
        only(torch.randn(rows, 4))
        assert expected == ops.called


def test_deadline_is_over_when_its_time_is() -> None:
    assert not Deadline(1000.0)()
    assert Deadline(0.0)()


def test_deadline_begins_with_the_first_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling for the first time takes longer than measuring may."""
    now = 0.0
    monkeypatch.setattr("inference.gpu.linears.monotonic", lambda: now)
    over = Deadline(30.0)
    now = 100.0
    assert not over()
    now = 129.0
    assert not over()
    now = 130.0
    assert over()


def test_what_there_was_no_time_to_measure_is_said() -> None:
    ops = Ways()
    multiply = Multiplier(ops)
    multiply.choose(linears(multiply, (6, 4), (4, 4)), 1, lambda run: 1.0, lambda: True)
    assert str(multiply).endswith("others as ever; there was no time to measure 8 ways")


@pytest.mark.parametrize(("taken", "expected"), [(0.4, ["gate"]), (0.9, ["faster"])])
def test_gate_in_the_linear_is_chosen_where_it_is_faster_than_both(taken: float, expected: list[str]) -> None:
    ops = Ways()
    multiply = Multiplier(ops)
    (only,) = linears(multiply, (6, 4))
    clock = Clock(ops, {**TAKEN, "gate": taken})
    multiply.choose([only], 2, clock)
    multiply.choose_gates([only], "gelu", 2, clock)
    ops.called.clear()
    x = torch.randn(2, 4)
    gate, up = linear(x, only.weight).chunk(2, -1)
    assert torch.allclose(only.gated(x, "gelu"), gelu(gate) * up, rtol=0, atol=1e-6)
    assert expected == ops.called


@pytest.mark.parametrize("bias", [True, False])
def test_swapped_linear_takes_any_shape_and_shares_its_weight(bias: bool) -> None:
    own = torch.nn.Linear(8, 5, bias=bias)
    weight, offset = own.weight.detach(), own.bias.detach() if bias else None
    swapped = SwappedLinear(device_linear(Multiplier(TorchOps()), torch.float32, weight, offset))
    x = torch.randn(2, 3, 8)
    assert torch.allclose(swapped(x), own(x), rtol=0, atol=1e-6)
    back = swapped.unpack()
    assert back.weight.data_ptr() == own.weight.data_ptr()
    assert (back.bias is None) is not bias
    assert (swapped.nbytes, swapped.form) == (8 * 5 * 4, "float32")


def in_4_bits(weight: Tensor, kind: str = "nf4") -> Bits4:
    return round_rows(weight, kind)


@pytest.mark.parametrize("bias", [True, False])
def test_swapped_linear_in_4_bits_is_the_one_that_was_there(bias: bool) -> None:
    own = torch.nn.Linear(70, 5, bias=bias, dtype=torch.bfloat16)
    codes, offset = in_4_bits(own.weight.detach()), own.bias.detach() if bias else None
    swapped = SwappedLinear(
        device_linear(Multiplier(TorchOps()), own.weight.dtype, own.weight, offset, codes)
    )
    x = torch.randn(2, 3, 70, dtype=torch.bfloat16)
    assert torch.equal(swapped(x), linear(x, codes.expand().bfloat16(), offset))
    assert (swapped.weight.shape, swapped.weight.dtype) == ((5, 70), torch.bfloat16)
    assert (swapped.nbytes, swapped.form) == (5 * (64 + 2 * 4), "4 bits")
    back = swapped.unpack()
    assert torch.equal(back(x), linear(x, codes.expand().bfloat16()) + (offset if bias else 0))
    assert back.weight.dtype == torch.bfloat16


def test_ways_are_chosen_by_how_a_weight_is_in_4_bits_too() -> None:
    class Kernels(Ways):
        def ways(self, rows: int, weight: Weight) -> Iterator[Way]:
            if isinstance(weight, Blocks) and weight.numbers is Numbers.LEVELS:
                yield Way("fast", self._way("fast", lambda x, w, b: linear(x, w.expand(), b)))

    ops = Kernels()
    multiply, own = Multiplier(ops), torch.randn(6, 64)
    plain = device_linear(multiply, torch.float32, own, None)
    levels = device_linear(multiply, torch.float32, own, None, in_4_bits(own))
    counted = replace(in_4_bits(own), levels=torch.arange(-8.0, 8.0))
    whole = device_linear(multiply, torch.float32, own, None, counted)
    multiply.tune([plain, levels, whole], [plain], "silu", [1, 40], Clock(ops, {**TAKEN, "gate": 9.0}), bool)
    for each, expected in ((plain, []), (levels, ["fast"]), (whole, [])):
        for rows in (1, 40):
            ops.called.clear()
            each(torch.randn(rows, 64))
            assert ops.called == expected
