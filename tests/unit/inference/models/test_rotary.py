from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from transformers import LlamaConfig  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding  # noqa: E402

from inference.models.rotary import BLOCK, RopeTable, is_static, spread_pairs  # noqa: E402
from inference.models.trace import Rope  # noqa: E402


def rope(max_position_embeddings: int = 512, **parameters: object) -> Rope:
    """Return a traced call of Llama's rotary embedding, with 3 tokens."""
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=max_position_embeddings,
        rope_parameters={"rope_theta": 10_000.0, "rope_type": "default", **parameters},
    )
    return Rope(
        LlamaRotaryEmbedding(config), (torch.zeros(1, 3, 64),), {"position_ids": torch.arange(3)[None]}
    )


def by_hand(positions: list[int]) -> tuple[Tensor, Tensor]:
    frequencies = 10_000.0 ** -(torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    angles = torch.tensor(positions, dtype=torch.float64)[:, None] * frequencies
    angles = torch.cat([angles, angles], -1)
    return angles.cos().float(), angles.sin().float()


def test_tables_stay_as_they_were_where_there_is_no_memory_for_longer_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, make = RopeTable(rope()), Tensor.new_empty
    made: list[Tensor] = []

    def short(table: Tensor, *shape: int) -> Tensor:
        if made:
            raise MemoryError
        made.append(make(table, shape))
        return made[0]

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "new_empty", short)
        with pytest.raises(MemoryError):
            table.upto(BLOCK)
    assert made
    cosines, sines = table.upto(0)
    assert len(cosines) == len(sines) == BLOCK
    assert [len(each) for each in table.upto(BLOCK)] == [2 * BLOCK] * 2


def test_tables_reach_as_far_as_texts_have_and_are_copied_for_none() -> None:
    table, plain = RopeTable(rope(), positions=10 * BLOCK - 5), RopeTable(rope())
    began = table.upto(BLOCK)
    for last in (2 * BLOCK, 10 * BLOCK - 6):
        found = table.upto(last)
        for each, first, expected in zip(found, began, plain.upto(last), strict=True):
            assert len(each) == (last // BLOCK + 1) * BLOCK
            assert each.data_ptr() == first.data_ptr()
            assert torch.equal(each[: last + 1], expected[: last + 1])


def test_positions_are_found_in_any_order_and_far_ahead() -> None:
    table = RopeTable(rope())
    for positions in ([3, 0, 3], [BLOCK - 1, BLOCK], [5000, 1], [2 * BLOCK]):
        found = [values[positions] for values in table.upto(max(positions))]
        for each, expected in zip(found, by_hand(positions), strict=True):
            assert torch.allclose(each, expected, atol=2e-4)  # angles are rounded to 32 bits


def test_bits_do_not_depend_on_when_the_table_grew() -> None:
    slowly, at_once = RopeTable(rope()), RopeTable(rope())
    for last in range(0, 4 * BLOCK, 100):
        slowly.upto(last)
    for one, other in zip(slowly.upto(0), at_once.upto(4 * BLOCK - 1), strict=True):
        assert torch.equal(one[: 4 * BLOCK], other[: 4 * BLOCK])


def test_rotation_by_position_alone_is_static() -> None:
    assert is_static(rope(), 4096)
    assert is_static(rope(rope_type="linear", factor=2.0), 4096)


def test_rotation_that_changes_with_the_longest_position_is_static_only_before_it_changes() -> None:
    dynamic = rope(rope_type="dynamic", factor=2.0)
    assert is_static(dynamic, 512)
    assert not is_static(rope(rope_type="dynamic", factor=2.0), 1024)


@pytest.mark.parametrize("positions", [100, 300, 512])
def test_tables_ask_for_no_position_that_would_change_the_others(positions: int) -> None:
    dynamic = rope(positions, rope_type="dynamic", factor=2.0)
    found = RopeTable(dynamic, positions=positions).upto(positions - 1)
    for each, expected in zip(found, by_hand(list(range(positions))), strict=True):
        assert torch.allclose(each[:positions], expected, atol=2e-4)


class Forgetful(nn.Module):
    """Counts its calls into its result."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        angles = position_ids[..., None] + torch.zeros(4) + self.calls
        return angles.cos(), angles.sin()


def test_rotation_with_a_memory_is_not_static() -> None:
    assert not is_static(
        Rope(Forgetful(), (torch.zeros(1, 1, 4), torch.zeros(1, 1, dtype=torch.int64)), {}), 8
    )


class Spatial(nn.Module):
    """Rotates each number by one of three positions, as models that see do."""

    def __init__(self, section: tuple[int, int, int]) -> None:
        super().__init__()
        self.section = section
        self.inv_freq = 1.0 / 10_000 ** (torch.arange(sum(section)) / sum(section))

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids.expand(3, -1, -1)[..., None].float() * self.inv_freq
        parts = angles.split(self.section, dim=-1)
        one = torch.cat([part[at % 3] for at, part in enumerate(parts)], dim=-1)
        both = torch.cat((one, one), dim=-1)
        return both.cos(), both.sin()


@pytest.mark.parametrize("spread", [False, True], ids=["halves", "neighbours"])
def test_positions_in_images_have_the_tables_bits(spread: bool) -> None:
    module = Spatial((4, 2, 2))
    called = Rope(module, (torch.zeros(1, 1, 16), torch.zeros(3, 1, 1, dtype=torch.int64)), {})
    table = RopeTable(called, spread=spread)
    positions = torch.randint(0, 3 * BLOCK, (3, 40), generator=torch.Generator().manual_seed(0))
    cosines, sines = table.at(positions)
    whole = table.upto(3 * BLOCK)
    own = called.tables(positions)
    expected = spread_pairs(own) if spread else own
    for found, wanted, known in zip((cosines, sines), expected, whole, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
        assert all((found[:, d, None] == known[:, d]).any(1).all() for d in range(16))
    along = torch.arange(20).expand(3, -1)
    assert torch.equal(table.at(along)[0], whole[0][:20])


def test_other_rotation_of_images_is_refused() -> None:
    module = Spatial((4, 2, 2))
    forward = module.forward
    module.forward = lambda x, position_ids: forward(x, position_ids.sum(0, keepdim=True))  # type: ignore[method-assign]
    called = Rope(module, (torch.zeros(1, 1, 16), torch.zeros(3, 1, 1, dtype=torch.int64)), {})
    with pytest.raises(ValueError, match="something else of positions in an image"):
        RopeTable(called).at(torch.ones(3, 2, dtype=torch.int64))
