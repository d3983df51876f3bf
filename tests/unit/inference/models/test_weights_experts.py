"""Experts stay in 16 bits, and the model's code computes what it would with float32, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch import dtype as Dtype  # noqa: E402
from torch.nn.functional import grouped_mm  # noqa: E402

from codegen.toys import save_toy, toy_model  # noqa: E402
from inference.kernels.native import open_library  # noqa: E402
from inference.levels.served import Level  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.models.weights import (  # noqa: E402
    NarrowExperts,
    Widened,
    asking_for_weights,
    expert_weights,
    keep_narrow,
    loading_class,
    widen,
)

# Plain; with biases, turned, and gates beside ups; turned; without gates
FAMILIES = ("qwen3_moe", "gpt_oss", "aria_text", "nemotron_h")
WAYS = ("eager", "grouped_mm", "batched_mm")  # how transformers may multiply with experts
EXPERTS, ROWS, COLUMNS = 4, 24, 16
IDS = torch.arange(3, 40)[None]


def experts_of(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if expert_weights(module)]


def kinds_of(model: nn.Module) -> set[Dtype]:
    return {each.dtype for module in experts_of(model) for each in expert_weights(module).values()}


def save(family: str, directory: Path, dtype: Dtype) -> dict[str, Dtype]:
    """Save a random model in a dtype and return the dtypes of its files."""
    save_toy(family, directory).to(dtype).save_pretrained(directory)
    return {name: each.dtype for name, each in load_file(directory / "model.safetensors").items()}


def load(family: str, directory: Path, stored: dict[str, Dtype], dtype: Dtype | None = None) -> Any:
    loader = loading_class(type(toy_model(family)), stored, dtype)
    model = loader.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    loaded = {name: each.dtype for name, each in model.named_parameters()}
    widen(model.eval().requires_grad_(False))
    return model, loaded


def widened(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose experts are float32."""
    copied = deepcopy(model)
    for module in experts_of(copied):
        for name, weights in expert_weights(module).items():
            module.register_parameter(name, nn.Parameter(weights.float(), requires_grad=False))
    return copied


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_stored_in_16_bits_they_are_loaded_so_and_compute_what_they_would_in_float32(
    family: str, dtype: Dtype, tmp_path: Path
) -> None:
    model, loaded = load(family, tmp_path, save(family, tmp_path, dtype))
    wide = widened(model)
    assert {loaded[name] for name in loaded if ".experts." in name and name.endswith("_proj")} == {dtype}
    assert [kinds_of(each) for each in (model, wide)] == [{dtype}, {torch.float32}]
    for way in WAYS:
        for each in (model, wide):
            each.set_experts_implementation(way)
        with torch.inference_mode():
            found, expected = (each(input_ids=IDS, use_cache=False).logits for each in (model, wide))
        assert torch.equal(found, expected)


@pytest.mark.parametrize("wide", ["gate_proj", "down_proj"])
def test_what_is_made_of_experts_in_32_bits_is_in_32(wide: str, tmp_path: Path) -> None:
    save("qwen3_moe", tmp_path, torch.bfloat16)
    file = tmp_path / "model.safetensors"
    stored = {
        name: each.float() if f"experts.1.{wide}" in name else each for name, each in load_file(file).items()
    }
    save_file(stored, file, metadata={"format": "pt"})
    _, loaded = load("qwen3_moe", tmp_path, {name: each.dtype for name, each in stored.items()})
    kinds = {name.rpartition(".")[2]: dtype for name, dtype in loaded.items() if "experts" in name}
    up, down = (torch.float32, torch.bfloat16) if wide == "gate_proj" else (torch.bfloat16, torch.float32)
    assert kinds == {"gate_up_proj": up, "down_proj": down}


def test_experts_are_never_rounded_while_they_are_loaded(tmp_path: Path) -> None:
    model, loaded = load("qwen3_moe", tmp_path, save("qwen3_moe", tmp_path, torch.float32), torch.bfloat16)
    assert {dtype for name, dtype in loaded.items() if "experts" in name} == {torch.float32}
    assert not any(isinstance(module, NarrowExperts) for module in model.modules())


@pytest.mark.parametrize(
    ("family", "with_kernels", "level", "kind"),
    [
        ("qwen3_moe", False, Level.PAGED_MERGED, torch.float32),  # as is planned, and takes less time
        ("deepseek_v32", False, Level.BATCHED, torch.float32),
    ],
)
def test_experts_that_arent_packed_are_kept_as_is_planned(
    family: str, with_kernels: bool, level: Level, kind: Dtype
) -> None:
    library = open_library(1) if with_kernels else None
    if with_kernels and library is None:
        pytest.skip("the extension isn't built")
    model = toy_model(family).to(torch.bfloat16)
    widen(model)
    with torch.inference_mode():
        with asking_for_weights():
            expected = model(input_ids=IDS, use_cache=False).logits
        assert bring_up(model, Options(library=library)).level is level
        model.set_attn_implementation("eager")
        found = model(input_ids=IDS, use_cache=False).logits
    assert kinds_of(model) == {kind}
    torch.testing.assert_close(found, expected)


def test_other_parameters_of_experts_become_float32(tmp_path: Path) -> None:
    model, _ = load("gpt_oss", tmp_path, save("gpt_oss", tmp_path, torch.bfloat16))
    biases = [each for name, each in model.named_parameters() if name.endswith("_proj_bias")]
    assert biases
    assert all(each.dtype == torch.float32 for each in biases)


@pytest.fixture
def weights() -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn((EXPERTS, ROWS, COLUMNS), generator=generator).bfloat16()


@pytest.mark.parametrize(
    "read",
    [
        lambda w: w[2],
        lambda w: w[torch.tensor([0, 3, 3])],
        lambda w: w.transpose(1, 2)[1],
        lambda w: torch.nn.functional.linear(torch.ones(3, COLUMNS), w[0]),
        lambda w: torch.bmm(torch.ones(EXPERTS, 2, ROWS), w),  # nothing else is known of: all are widened
        lambda w: torch.cat([w, w.transpose(1, 2).reshape(w.shape)]).sum(0),
        lambda w: w.to(w.dtype) * 2,
        lambda w: w.view(-1, w.shape[-1]).mean(0),
    ],
)
def test_to_its_readers_a_narrow_tensor_is_one_of_float32(
    read: Callable[[Tensor], Tensor], weights: Tensor
) -> None:
    found = read(Widened.of(weights))
    assert (type(found), found.dtype) == (Tensor, torch.float32)
    assert torch.equal(found, read(weights.float()))


def test_it_says_of_itself_what_one_of_float32_would(weights: Tensor) -> None:
    narrow, wide = Widened.of(weights), weights.float()
    for each in (narrow.transpose(1, 2), wide.transpose(1, 2)):
        assert (each.shape, each.size(-1)) == ((EXPERTS, COLUMNS, ROWS), ROWS)
    assert (narrow.dtype, narrow.device, narrow.dim(), narrow.ndim, len(narrow)) == (
        *(wide.dtype, wide.device, wide.dim(), wide.ndim),
        len(wide),
    )


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("counts", [(5, 0, 1, 3), (0, 0, 0, 9), (2, 2, 2, 2)])  # of the last, one is nobody's
def test_groups_are_multiplied_expert_by_expert(
    counts: tuple[int, ...], turned: bool, weights: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    given = torch.randn(9, COLUMNS if turned else ROWS)
    narrow, wide = Widened.of(weights), weights.float()
    if turned:
        narrow, wide = narrow.transpose(-2, -1), wide.transpose(-2, -1)
    monkeypatch.setattr("inference.models.weights._all_widened", None)  # not all at once
    found, expected = (grouped_mm(given, each, offs=ends) for each in (narrow, wide))
    assert torch.equal(found[: ends[-1]], expected[: ends[-1]])
    with pytest.raises(TypeError):
        grouped_mm(given, narrow, offs=ends, out_dtype=torch.bfloat16)  # which all at once would be for


def test_experts_have_one_class_more_however_often_they_are_told() -> None:
    experts = experts_of(toy_model("qwen3_moe"))[0].bfloat16()
    own = type(experts)
    keep_narrow(experts)
    keep_narrow(experts)
    assert type(experts).__mro__[1:3] == (NarrowExperts, own)
    assert type(experts).__name__ == own.__name__
    assert all(isinstance(each, nn.Parameter) for each in experts.parameters())
    assert not hasattr(experts, "no_such_weight")


def test_only_experts_that_can_be_packed_are_found() -> None:
    model = toy_model("qwen3_moe")
    experts = experts_of(model)
    assert [sorted(expert_weights(each)) for each in experts] == [["down_proj", "gate_up_proj"]] * 3
    experts[0].num_experts += 1
    del experts[1].down_proj
    assert experts_of(model) == experts[2:]
