from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402
from torch import Tensor  # noqa: E402
from torch import dtype as Kind  # noqa: E402

from inference.errors import ModelUnavailable  # noqa: E402
from inference.files.safetensors import read_header  # noqa: E402
from inference.quantised.stored import Stored, expanded, find_stored  # noqa: E402
from tests.unit.inference.quantised.tables import method  # noqa: E402

WEIGHT = torch.arange(-8.0, 8).view(4, 4).to(torch.float8_e4m3fn)
PLAIN = torch.ones(3).bfloat16()


def found(
    directory: Path, *files: Mapping[str, Tensor], dtype: str | None = None, name: str = "fp8"
) -> Stored | None:
    paths = [directory / f"{at}.safetensors" for at in range(len(files))]
    for path, tensors in zip(paths, files, strict=True):
        save_file(dict(tensors), path)
    return find_stored(method(name), {path: read_header(path) for path in paths}, dtype)


def test_a_weight_is_made_of_tensors_in_several_files(tmp_path: Path) -> None:
    scale = torch.tensor([[0.5]])
    stored = found(
        tmp_path, {"x.weight": WEIGHT, "n": PLAIN}, {"x.weight_scale": scale, "x.input_scale": scale.clone()}
    )
    assert stored is not None
    assert str(stored) == "fp8, scales by tensors or rows, expanded to bfloat16"
    assert (stored.held_bytes, stored.file_bytes) == (32, 20)
    with expanded(stored, sorted(tmp_path.iterdir())) as (tensors, _):
        made = {name: each[...] for name, each in tensors.items()}
    assert set(made) == {"x.weight", "n"}
    assert torch.equal(made["x.weight"], (WEIGHT.float() * 0.5).bfloat16())
    assert torch.equal(made["n"], PLAIN)


def test_headers_say_what_the_model_is_given(tmp_path: Path) -> None:
    tensors = {"x.weight": WEIGHT, "x.weight_scale": torch.ones(4, 1), "n": PLAIN}
    stored = found(tmp_path, tensors, dtype="F16")
    assert stored is not None
    given = stored.tensors(read_header(tmp_path / "0.safetensors"))
    assert {name: (each.dtype, each.shape) for name, each in given.items()} == {
        "n": ("BF16", (3,)),
        "x.weight": ("F16", (4, 4)),
    }


def test_scales_in_float16_have_weights_expanded_to_it_where_nothing_else_is_said(tmp_path: Path) -> None:
    stored = found(tmp_path, {"x.weight": WEIGHT, "x.weight_scale": torch.ones(1).half()})
    assert stored is not None
    assert stored.dtype == "F16"


def test_files_without_quantised_weights_are_as_any(tmp_path: Path) -> None:
    assert found(tmp_path, {"x.weight": torch.ones(4, 4), "ids": torch.arange(4)}) is None


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int8])
def test_weights_of_a_variant_that_is_not_known_are_refused(dtype: Kind, tmp_path: Path) -> None:
    with pytest.raises(
        ModelUnavailable, match=r"its files have `x.B` in .*, which isn't known of that method"
    ):
        found(tmp_path, {"x.B": torch.ones(4, 4).to(dtype)}, name="gptq")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e8m0fnu])
def test_a_weight_left_over_is_not_taken_for_its_numbers(dtype: Kind, tmp_path: Path) -> None:
    tensors = {"x.weight": WEIGHT, "x.weight_scale": torch.ones(1), "y.weight": torch.ones(4, 4).to(dtype)}
    with pytest.raises(ModelUnavailable, match=r"its files have `y.weight` in "):
        found(tmp_path, tensors)
