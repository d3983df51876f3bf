"""A mixture's experts by the C extension, on every ISA that this CPU has, beside torch in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.kernels import native
from inference.kernels.gating import ACTIVATIONS, Gating
from inference.kernels.native import PackedLinear, WeightKind
from inference.kernels.native_experts import ExpertsMemory, PackedExperts
from tests.isas import ISAS
from tests.unit.inference.kernels.test_native import library, randn, same

pytestmark = pytest.mark.skipif(native.library_path() is None, reason="the extension wasn't built: no GCC")
every_isa = pytest.mark.parametrize("isa", ISAS)
GPT_OSS = Gating(gates=True, activation="silu", factor=1.702, limit=1.0, offset=1.0)
GATINGS = (
    GPT_OSS,
    *(Gating(gates=gates, activation=name) for gates in (True, False) for name in ACTIVATIONS),
)


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Experts and what they are packed of."""

    up: Tensor  # (experts, n, hidden)
    down: Tensor  # (experts, hidden, inner)
    biases: tuple[Tensor, Tensor]
    gating: Gating

    @classmethod
    def of(cls, count: int, hidden: int, inner: int, gating: Gating) -> Mixture:
        """Return random ones, whose weights bfloat16 holds."""
        n = (1 + gating.gates) * inner
        up, down = randn(count, n, hidden, seed=1), randn(count, hidden, inner, seed=2)
        up, down = ((each / each.shape[2] ** 0.5).bfloat16().float() for each in (up, down))
        return cls(up, down, (randn(count, n, seed=3), randn(count, hidden, seed=4)), gating)

    def packed(
        self,
        isa: str,
        kind: WeightKind = WeightKind.FLOAT32,
        threads: int = 2,
        *,
        round_inputs: bool = False,
        memory: ExpertsMemory | None = None,
    ) -> PackedExperts:
        """Return them packed."""
        opened = library(isa, threads)
        up, down = (
            [
                PackedLinear.pack(opened, weight, bias, kind, round_inputs=round_inputs)
                for weight, bias in zip(weights, biases, strict=True)
            ]
            for weights, biases in zip((self.up, self.down), self.biases, strict=True)
        )
        return PackedExperts(memory or ExpertsMemory(opened), up, down, self.gating)

    def expected(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """Return what they give by the definition, in float64."""
        result = torch.zeros_like(x, dtype=torch.float64)
        for row, (chosen, shares) in enumerate(zip(index.tolist(), weights.double(), strict=True)):
            for expert, share in zip(chosen, shares, strict=True):
                if not 0 <= expert < len(self.up):
                    continue
                inner = self.gating(self.up[expert].double() @ x[row].double() + self.biases[0][expert])
                result[row] += share * (self.down[expert].double() @ inner + self.biases[1][expert])
        return result


def routing(tokens: int, count: int, chosen: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return experts (tokens, chosen) and their weights."""
    shares, index = randn(tokens, count, seed=seed).softmax(-1).topk(chosen)
    return index, shares


@every_isa
@settings(max_examples=25)
@given(
    tokens=st.integers(1, 12) | st.just(140),
    count=st.integers(1, 9),
    hidden=st.sampled_from([7, 32, 65, 128]),
    inner=st.sampled_from([5, 32, 48, 96]),
    gating=st.sampled_from(GATINGS),
    data=st.data(),
)
def test_experts_give_what_the_definition_does(
    isa: str, tokens: int, count: int, hidden: int, inner: int, gating: Gating, data: st.DataObject
) -> None:
    mixture = Mixture.of(count, hidden, inner, gating)
    chosen = data.draw(st.integers(1, min(count, 4)))
    x, (index, weights) = randn(tokens, hidden, seed=5), routing(tokens, count, chosen)
    if data.draw(st.booleans()):
        index[:: data.draw(st.integers(1, 3)), 0] = data.draw(st.sampled_from([count, count + 7, -1]))
    found = mixture.packed(isa)(x, index, weights)
    torch.testing.assert_close(found.double(), mixture.expected(x, index, weights), rtol=1e-4, atol=1e-4)


@every_isa
@pytest.mark.parametrize("kind", [WeightKind.FLOAT32, WeightKind.BFLOAT16, WeightKind.INT8])
@pytest.mark.parametrize("round_inputs", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_tokens_bits_are_the_same_in_any_batch(
    isa: str, kind: WeightKind, round_inputs: bool, threads: int
) -> None:
    mixture = Mixture.of(6, 64, 96, GPT_OSS)
    x, (index, weights) = randn(150, 64, seed=5), routing(150, 6, 3)
    whole = mixture.packed(isa, kind, round_inputs=round_inputs)(x, index, weights)
    other = mixture.packed(isa, kind, threads, round_inputs=round_inputs)
    for some in (slice(7, 8), slice(3, 30), torch.arange(149, -1, -3)):
        assert same(other(x[some], index[some], weights[some]), whole[some])
    turned = other(x, index.flip(-1), weights.flip(-1))
    assert same(turned, whole)


@every_isa
def test_rounded_experts_are_near(isa: str) -> None:
    mixture = Mixture.of(4, 128, 64, GATINGS[1])
    x, (index, weights) = randn(20, 128, seed=5), routing(20, 4, 2)
    expected = mixture.expected(x, index, weights)
    for kind, near in ((WeightKind.INT8, 0.03), (WeightKind.BFLOAT16, 0.02)):
        found = mixture.packed(isa, kind, round_inputs=True)(x, index, weights)
        assert (found - expected).norm() < near * expected.norm()


@every_isa
def test_kinds_may_differ_from_expert_to_expert(isa: str) -> None:
    mixture, opened = Mixture.of(4, 64, 96, GPT_OSS), library(isa)
    kinds = (WeightKind.FLOAT32, WeightKind.BFLOAT16, WeightKind.INT8, WeightKind.BFLOAT16)
    memory = ExpertsMemory(opened)
    up, down = (
        [
            PackedLinear.pack(opened, weights[i], biases[i], kind, round_inputs=kind is WeightKind.BFLOAT16)
            for i, kind in enumerate(kinds)
        ]
        for weights, biases in zip((mixture.up, mixture.down), mixture.biases, strict=True)
    )
    x, (index, weights) = randn(40, 64, seed=5), routing(40, 4, 2)
    found = PackedExperts(memory, up, down, GPT_OSS)(x, index, weights)
    expected = mixture.expected(x, index, weights)
    assert (found - expected).norm() < 0.03 * expected.norm()


@every_isa
def test_what_is_not_a_number_stays_so_and_in_its_row(isa: str) -> None:
    mixture = Mixture.of(4, 64, 96, GPT_OSS)
    x, (index, weights) = randn(9, 64, seed=5), routing(9, 4, 2)
    packed = mixture.packed(isa)
    clean = packed(x, index, weights)
    x[3, 5] = float("nan")
    found = packed(x, index, weights)
    assert found[3].isnan().all()
    others = [row for row in range(9) if row != 3]
    assert same(found[others], clean[others])


@every_isa
def test_layers_share_one_memory_and_steps_may_be_empty(isa: str) -> None:
    small, large = Mixture.of(3, 32, 32, GPT_OSS), Mixture.of(8, 128, 96, GPT_OSS)
    memory = ExpertsMemory(library(isa))
    packed, both = small.packed(isa, memory=memory), large.packed(isa, memory=memory)
    for tokens in (3, 0, 50, 1):
        x, (index, weights) = randn(tokens, 32, seed=tokens), routing(tokens, 3, 2)
        found = packed(x, index, weights)
        assert found.shape == (tokens, 32)
        torch.testing.assert_close(found.double(), small.expected(x, index, weights), rtol=1e-4, atol=1e-4)
    x, (index, weights) = randn(60, 128, seed=6), routing(60, 8, 3)
    found = both(x, index, weights)
    torch.testing.assert_close(found.double(), large.expected(x, index, weights), rtol=1e-4, atol=1e-4)
