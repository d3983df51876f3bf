"""Mixtures are read by what they compute; what isn't understood to the last part is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import linear, silu  # noqa: E402
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeConfig, Qwen3MoeExperts  # noqa: E402

from codegen.toys import toy_model  # noqa: E402
from inference.kernels.choosing import Choosing  # noqa: E402
from inference.models.layers import MixtureParts, OtherShape  # noqa: E402
from inference.models.mixtures import read_mixture  # noqa: E402
from inference.models.weights import expert_weights  # noqa: E402

HIDDEN, COUNT = 32, 8
SOFTMAX = Choosing(scoring="softmax", chosen=2)
SIGMOID = replace(SOFTMAX, scoring="sigmoid", chosen=3)
FORMS = {
    "OLMoE": SOFTMAX,
    "Mixtral": replace(SOFTMAX, normalises=True),
    "a factor": replace(SOFTMAX, scale=0.25),
    "one expert": replace(SOFTMAX, chosen=1),
    "sigmoids": SIGMOID,
    "normalised sigmoids, and a factor": replace(SIGMOID, normalises=True, scale=2.5),
    "groups by their best": replace(SOFTMAX, chosen=3, groups=4, kept=2),
    "groups by their best two": replace(SIGMOID, groups=4, kept=2, best=2, normalises=True),
    "one group": replace(SIGMOID, groups=2, kept=1, best=2),
}


class MLP(nn.Module):
    """A gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(HIDDEN, 24, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(24, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return found


class Block(nn.Module):
    """A mixture that chooses as it is told to, with members of other names than any family has."""

    def __init__(self, choosing: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]] = SOFTMAX) -> None:
        super().__init__()
        config = Qwen3MoeConfig(hidden_size=HIDDEN, num_experts=COUNT, moe_intermediate_size=16)
        self.workers = Qwen3MoeExperts(config)
        self.to_whom = nn.Parameter(torch.empty(COUNT, HIDDEN))
        self.lean: nn.Parameter | None = None
        self.mend: Tensor | None = None
        self.all: nn.Module | None = None
        self.valve: nn.Module | None = None
        self.choosing = choosing
        if isinstance(choosing, Choosing):
            self.clusters, self.stay = choosing.groups, choosing.kept

    def forward(self, x: Tensor) -> Any:
        rows = self.given(x.reshape(-1, HIDDEN))
        logits = linear(rows, self.to_whom, self.lean)
        found = self.workers(rows, *self.choosing(logits, self.mend))
        if self.all is not None:
            beside = self.all(rows)
            found = found + (beside if self.valve is None else self.valve(rows).sigmoid() * beside)
        return found.view_as(x), logits

    def given(self, rows: Tensor) -> Tensor:
        return rows


def filled(block: Block, seed: int = 0) -> Block:
    torch.manual_seed(seed)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.3)
    return block.requires_grad_(False)


def read(block: nn.Module) -> MixtureParts:
    found = read_mixture(block)
    assert found is not None
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("leans", [False, True])
@pytest.mark.parametrize("mends", [False, True])
def test_each_way_to_choose_is_found(form: str, leans: bool, mends: bool) -> None:
    block = Block(FORMS[form])
    block.lean = nn.Parameter(torch.empty(COUNT)) if leans else None
    filled(block)
    block.mend = torch.randn(COUNT) * 0.2 if mends else None
    if mends:
        mend = block.mend
        del block.mend
        block.register_buffer("mend", mend)
    parts = read(block)
    assert replace(parts.choosing, scale=1.0) == replace(FORMS[form], scale=1.0)
    assert parts.choosing.scale == pytest.approx(FORMS[form].scale, rel=1e-6)
    assert torch.equal(parts.router, block.to_whom)
    assert parts.experts is block.workers
    for found, expected in ((parts.bias, block.lean), (parts.correction, block.mend)):
        assert found is None if expected is None else found is not None and torch.equal(found, expected)
    assert parts.shared is parts.gate is None


def test_a_correction_of_zeros_is_none() -> None:
    block = filled(Block(SIGMOID))
    del block.mend
    block.register_buffer("mend", torch.zeros(COUNT))
    assert read(block).correction is None


@pytest.mark.parametrize("gated", [False, True])
def test_what_is_shared_is_found(gated: bool) -> None:
    block = Block()
    block.all = MLP()
    block.valve = nn.Linear(HIDDEN, 1) if gated else None
    parts = read(filled(block))
    assert parts.shared is block.all
    assert parts.gate is block.valve
    weight, bias = parts.routing()
    assert weight.shape == (COUNT + gated, HIDDEN)
    if block.valve is not None:
        assert bias is not None
        assert torch.equal(weight, torch.cat([block.to_whom, block.valve.get_parameter("weight")]))
        assert torch.equal(bias, torch.cat([torch.zeros(COUNT), block.valve.get_parameter("bias")]))


def test_reading_changes_nothing() -> None:
    block = filled(Block())
    x = torch.randn(1, 5, HIDDEN)
    before = block(x)[0]
    read(block)
    assert torch.equal(block(x)[0], before)
    assert "forward" not in vars(block.workers)


def test_without_experts_there_is_none() -> None:
    assert read_mixture(MLP()) is None


def _by_order(logits: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor]:
    """The second and third best, and not the first."""
    values, index = logits.softmax(-1).topk(3)
    return index[:, 1:], values[:, 1:]


def _by_squares(logits: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor]:
    values, index = logits.softmax(-1).topk(2)
    return index, values.square()


def _seldom(logits: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor]:
    """As Mixtral, but for one row of ten."""
    index, values = FORMS["Mixtral"](logits)
    index[::10] = (index[::10] + 1) % COUNT
    return index, values


def _as_they_are(logits: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor]:
    values, index = logits.topk(2)
    return index, values


@pytest.mark.parametrize("choosing", [_by_order, _by_squares, _seldom, _as_they_are])
def test_other_ways_to_choose_are_refused(choosing: Any) -> None:
    with pytest.raises(OtherShape, match="what chooses the experts of `Block` isn't known"):
        read_mixture(filled(Block(choosing)))


class _Scaled(Block):
    def given(self, rows: Tensor) -> Tensor:
        return rows * 1.001


class _Twice(Block):
    def forward(self, x: Tensor) -> Any:
        return super().forward(super().forward(x)[0])


class _Factor(Block):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x)[0] * 1.5


class _Skips(Block):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x)[0] + x


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        (_Scaled(), "what chooses the experts of `_Scaled` isn't known"),
        (_Twice(), "`_Twice` doesn't give each row to its experts once"),
        (_Factor(), "something is added to what its experts give"),
        (_Skips(), "something is added to what its experts give"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_other_blocks_are_refused(block: Block, complaint: str) -> None:
    with pytest.raises(OtherShape, match=complaint):
        read_mixture(filled(block))


@pytest.mark.parametrize("change", ["more experts", "two MLPs", "a scale", "a third vector", "an MLP apart"])
def test_what_has_no_part_is_refused(change: str) -> None:
    block = Block()
    if change == "more experts":
        block.others = Block().workers
    elif change == "two MLPs":
        block.all, block.too = MLP(), MLP()
    elif change == "a scale":
        block.scale = nn.Parameter(torch.empty(HIDDEN))
    elif change == "a third vector":
        block.lean, block.more, block.most = (nn.Parameter(torch.empty(COUNT)) for _ in range(3))
    else:
        block.unused = MLP()
    with pytest.raises(OtherShape):
        read_mixture(filled(block))


def test_a_shared_mlp_of_another_activation_is_left_to_who_reads_mlps() -> None:
    """It computes what its module does; which activation that is, is read with it."""
    block = Block()
    block.all = MLP()
    assert read(filled(block)).shared is block.all


def test_experts_that_are_gated_in_another_way_are_refused() -> None:
    block = filled(Block())
    block.workers.act_fn = nn.Softplus()
    with pytest.raises(OtherShape, match="what the experts of `Block` compute isn't known"):
        read_mixture(block)


FAMILIES = {  # what is chosen by, whether there is a bias, a correction, an MLP and a gate
    "qwen3_moe": (SOFTMAX, "    "),
    "mixtral": (replace(SOFTMAX, normalises=True), "    "),
    "granitemoe": (replace(SOFTMAX, normalises=True), "    "),
    "gpt_oss": (replace(SOFTMAX, normalises=True), "b   "),
    "qwen2_moe": (SOFTMAX, "  mg"),
    "ernie4_5_moe": (replace(SOFTMAX, normalises=True), " cm "),
    "glm4_moe": (replace(SIGMOID, chosen=2, normalises=True), " cm "),
    "minimax_m2": (replace(SIGMOID, chosen=2, normalises=True), " c  "),
    "deepseek_v3": (replace(SIGMOID, chosen=2, normalises=True, scale=2.5), " cm "),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_read(family: str) -> None:
    model = toy_model(family)
    *_, block = (each for each in model.modules() if any(expert_weights(child) for child in each.children()))
    for name, tensor in (*block.named_parameters(), *block.named_buffers()):
        if name.endswith("bias"):
            nn.init.normal_(tensor, std=0.2)
    parts = read(block)
    choosing, has = FAMILIES[family]
    assert replace(parts.choosing, scale=1.0) == replace(choosing, scale=1.0)
    assert parts.choosing.scale == pytest.approx(choosing.scale, rel=1e-6)
    found = (parts.bias, parts.correction, parts.shared, parts.gate)
    assert [each is not None for each in found] == [each != " " for each in has]
