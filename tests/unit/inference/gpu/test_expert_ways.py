"""Which way of computing experts is taken is measured; here a clock says what a test wants it to take."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from inference.gpu.expert_ways import ExpertLinear, ExpertMultiplier, something  # noqa: E402
from inference.gpu.linears import Multiplier  # noqa: E402
from inference.gpu.mixtures import ExpertWeight, Routing  # noqa: E402
from inference.gpu.ops import ExpertWay, MultiplyExperts  # noqa: E402
from inference.gpu.torch_ops import TorchOps  # noqa: E402
from inference.kernels.gating import Gating  # noqa: E402


class Ways(TorchOps):
    """Torch's operations with more ways, each of which says that it was called."""

    def __init__(self) -> None:
        self.called: list[tuple[str, int]] = []  # by name and tokens

    def expert_ways(self, tokens: int, chosen: int, weight: ExpertWeight) -> Iterator[ExpertWay]:
        for name, times in (("slow", 1.0), ("fast", 1.0), ("wrong", 1.1)):
            yield ExpertWay(name, self._way(name, times))

    def expert_linear(
        self,
        x: Tensor,
        weight: ExpertWeight,
        routing: Routing,
        gathers: bool,
        gate: Gating | None = None,
    ) -> Tensor:
        self.called.append(("own", len(routing.index)))
        return super().expert_linear(x, weight, routing, gathers, gate)

    def _way(self, name: str, times: float) -> MultiplyExperts:
        def multiply(
            x: Tensor, weight: ExpertWeight, routing: Routing, gathers: bool, gate: Gating | None
        ) -> Tensor:
            self.called.append((name, len(routing.index)))
            return TorchOps.expert_linear(self, x, weight, routing, gathers, gate) * times

        return multiply


def clock(ops: Ways, taken: dict[str, float]) -> Callable[[Callable[[], object]], float]:
    def seconds(run: Callable[[], object]) -> float:
        before = len(ops.called)
        run()
        (name,) = {name for name, _ in ops.called[before:]}
        return taken[name]

    return seconds


def linears() -> list[ExpertLinear]:
    torch.manual_seed(0)
    ups = [ExpertWeight(torch.randn(6, 20, 16), 6) for _ in range(2)]
    downs = [ExpertWeight(torch.randn(6, 16, 10), 6) for _ in range(2)]
    return [*(ExpertLinear(each, 2, True) for each in ups), *(ExpertLinear(each, 2, False) for each in downs)]


def used(ops: Ways, multiply: ExpertMultiplier, linear: ExpertLinear, tokens: int) -> str:
    """Return by which way so many tokens are computed, having seen that what comes out is right."""
    _, index, _ = something(linear.weight, tokens, 2)
    routing = ops.route(index, 6)
    x = linear.rows(routing)
    ops.called.clear()
    found = multiply(x, linear.weight, routing, linear.gathers, None)
    (name,) = {name for name, _ in ops.called}
    assert torch.equal(found, TorchOps().expert_linear(x, linear.weight, routing, linear.gathers))
    return name


@pytest.mark.parametrize(
    ("taken", "best"),
    [
        ({"own": 3.0, "slow": 2.0, "fast": 1.0, "wrong": 0.1}, "fast"),
        ({"own": 1.0, "slow": 2.0, "fast": 0.99, "wrong": 0.1}, "own"),  # hardly better
    ],
)
def test_the_fastest_way_that_is_right_is_taken(taken: dict[str, float], best: str) -> None:
    ops = Ways()
    multiply = ExpertMultiplier(Multiplier(ops))
    multiply.tune(linears(), [1, 3, 40, 50, 300], clock(ops, taken))
    for linear in linears():
        assert [used(ops, multiply, linear, tokens) for tokens in (1, 3, 40, 50)] == [best] * 4
        assert {used(ops, multiply, linear, tokens) for tokens in (2, 64, 300)} == {"own"}  # not asked for
    said = "Shapes of experts: 6 by fast, others as ever"  # two shapes for 1, 3 and 64 tokens
    assert str(multiply) == (said if best == "fast" else "")


def test_what_there_is_no_time_for_is_said() -> None:
    ops = Ways()
    multiply = ExpertMultiplier(Multiplier(ops))
    multiply.tune(linears(), [4], clock(ops, {}), lambda: True)
    assert str(multiply) == "Shapes of experts: others as ever; there was no time to measure 6 ways"
    assert used(ops, multiply, linears()[0], 4) == "own"
