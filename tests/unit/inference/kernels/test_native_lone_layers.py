"""Layers of a stack with a mixer and no MLP, or an MLP and no mixer: each adds one thing to the stream."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.nn.functional import silu  # noqa: E402

from inference.kernels.native import Library, PackedLinear, WeightKind  # noqa: E402
from inference.kernels.native_attention import NativeStep  # noqa: E402
from inference.kernels.native_layers import LayerWeights, NativeStack, StackShape  # noqa: E402
from inference.kernels.native_state import Convolution, NativeRuns  # noqa: E402
from inference.kernels.native_state_layers import (  # noqa: E402
    NativeStateLayer,
    StateLayout,
    StateWeights,
)
from tests.unit.inference.paged_attention import built, every_library  # noqa: E402
from tests.unit.inference.recurrences import drawn  # noqa: E402

pytestmark = built
HIDDEN, INNER, TAPS = 48, 40, 3
EPS = 1e-6
ORDERS = ["mixer", "mlp", "mixer mlp", "mlp mixer", "mlp mlp mixer mixer mlp"]
FEW, MANY = 21, 400  # rows: many are computed by phases of their own


class Paper:
    """Such layers one after the other, as C has them and as it is written down."""

    def __init__(self, library: Library, order: str) -> None:
        self._library = library
        self._layers = [(kind, 100 * at) for at, kind in enumerate(order.split())]
        shape = StackShape(hidden=HIDDEN, heads=0, kv_heads=0, head_dim=1, inner=INNER, eps=EPS, scaling=1.0)
        made = [self._mixer(seed) if kind == "mixer" else self._mlp(seed) for kind, seed in self._layers]
        self._stack = NativeStack(library, made, shape)

    def _pack(self, n: int, k: int, seed: int) -> PackedLinear:
        return PackedLinear.pack(self._library, drawn(n, k, seed=seed) / 7, None, WeightKind.FLOAT32)

    def _mixer(self, seed: int) -> LayerWeights:
        layout = StateLayout(width=3 * HIDDEN, before=0, behind=HIDDEN, mixed=2 * HIDDEN)
        convolve = Convolution(self._library, drawn(HIDDEN, TAPS, seed=seed + 3), None, silu=False)
        state = NativeStateLayer(StateWeights(layout=layout, convolution=convolve))
        state.allocate(8)
        return LayerWeights(
            qkv=self._pack(3 * HIDDEN, HIDDEN, seed + 1),
            out=self._pack(HIDDEN, HIDDEN, seed + 2),
            gate_up=None,
            down=None,
            cache=None,
            state=state,
            input_norm=1 + drawn(HIDDEN, seed=seed) / 4,
            rotary=None,
        )

    def _mlp(self, seed: int) -> LayerWeights:
        return LayerWeights(
            qkv=None,
            out=None,
            gate_up=self._pack(2 * INNER, HIDDEN, seed + 1),
            down=self._pack(HIDDEN, INNER, seed + 2),
            cache=None,
            mid_norm=1 + drawn(HIDDEN, seed=seed) / 4,
            rotary=None,
        )

    def run(self, rows: Tensor, *sizes: int) -> Tensor:
        """Return what C makes of several sequences' first tokens."""
        none = np.full(len(sizes), -1)
        runs = NativeRuns(np.cumsum(sizes), none, np.arange(len(sizes)))
        self._stack.keep(runs)
        zeros = np.zeros(len(sizes), dtype=np.int64)
        step = NativeStep(zeros, np.array(sizes), zeros, np.zeros((1, 64), dtype=np.int32))
        return self._stack.run(rows, [], [], step)

    def textbook(self, rows: Tensor) -> Tensor:
        """Return the same of one sequence in float64."""
        x = rows.double()
        for kind, seed in self._layers:
            norm = (1 + drawn(HIDDEN, seed=seed) / 4).double()
            given = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * norm
            x = x + (_mixed(given, seed) if kind == "mixer" else _fed(given, seed))
        return x


def _weight(n: int, k: int, seed: int) -> Tensor:
    return drawn(n, k, seed=seed).double() / 7


def _mixed(x: Tensor, seed: int) -> Tensor:
    before, behind, mixed = (x @ _weight(3 * HIDDEN, HIDDEN, seed + 1).T).chunk(3, -1)
    kernel = drawn(HIDDEN, TAPS, seed=seed + 3).double()
    padded = torch.cat([mixed.new_zeros(TAPS - 1, HIDDEN), before * mixed])
    found = sum((padded[j : j + len(x)] * kernel[:, j] for j in range(TAPS)), torch.zeros_like(mixed))
    return (behind * found) @ _weight(HIDDEN, HIDDEN, seed + 2).T


def _fed(x: Tensor, seed: int) -> Tensor:
    gates, ups = (x @ _weight(2 * INNER, HIDDEN, seed + 1).T).chunk(2, -1)
    return (silu(gates) * ups) @ _weight(HIDDEN, INNER, seed + 2).T


@every_library
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("tokens", [1, FEW, MANY])
def test_layers_are_the_textbooks(library: Library, order: str, tokens: int) -> None:
    paper, rows = Paper(library, order), drawn(tokens, HIDDEN, seed=20)
    found, expected = paper.run(rows, tokens), paper.textbook(rows)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


@every_library
@pytest.mark.parametrize("order", ORDERS)
def test_few_rows_have_the_bits_that_they_have_among_many(library: Library, order: str) -> None:
    paper, rows = Paper(library, order), drawn(FEW, HIDDEN, seed=20)
    alone = paper.run(rows, FEW)
    among = paper.run(torch.cat([drawn(MANY, HIDDEN, seed=21), rows]), MANY, FEW)
    assert torch.equal(among[MANY:], alone)


@every_library
def test_layer_of_half_a_mixer_is_refused(library: Library) -> None:
    paper = Paper(library, "mlp")
    whole = paper._mixer(0)
    for missing in ("qkv", "out"):
        parts = {"qkv": whole.qkv, "out": whole.out, missing: None}
        broken = LayerWeights(**parts, gate_up=None, down=None, cache=None, state=whole.state)  # type: ignore[arg-type]
        with pytest.raises(AssertionError, match="a mixer, or none of it"):
            NativeStack(library, [broken], paper._stack.shape)
