"""bitsandbytes: what its own library packs is expanded as that library does."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch import dtype as Kind  # noqa: E402

from inference.errors import ModelUnavailable  # noqa: E402
from inference.quantised.bnb import find  # noqa: E402
from tests.unit.inference.quantised.tables import expand, method, table  # noqa: E402

STATE = "x.weight.quant_state.bitsandbytes__nf4"


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16])
def test_4_bits_are_as_the_library_has_them(kind: str, nested: bool, storage: Kind) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    torch.manual_seed(2)
    weight = torch.randn(96, 256)
    packed, state = functional.quantize_4bit(
        weight, blocksize=64, compress_statistics=nested, quant_type=kind, quant_storage=storage
    )
    stored = {f"x.weight.{name}": each for name, each in state.as_dict(packed=True).items()}
    tensors = {"x.weight": packed, **stored}
    found = find(table(tensors), method("bitsandbytes", load_in_4bit=True))
    expected = functional.dequantize_4bit(packed, state)
    torch.testing.assert_close(expand(found, tensors), expected, rtol=1e-6, atol=1e-7)
    assert found.used() == set(tensors)


def test_8_bits_are_as_the_library_has_them() -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    torch.manual_seed(2)
    numbers, scale, _ = functional.int8_vectorwise_quant(torch.randn(96, 256).half())
    tensors = {"x.weight": numbers, "x.SCB": scale, "x.weight_format": torch.tensor(0, dtype=torch.uint8)}
    found = find(table(tensors), method("bitsandbytes", load_in_8bit=True))
    expected = functional.int8_vectorwise_dequant(numbers, scale)
    torch.testing.assert_close(expand(found, tensors), expected.float(), rtol=1e-6, atol=1e-7)
    assert found.used() == set(tensors)


def packed(**changes: Any) -> dict[str, Tensor]:
    """Return a weight of 8 x 64 in blocks of 64, some of whose tensors are others or not there."""
    state = {"blocksize": 64, "shape": [8, 64], "quant_type": "nf4"} | changes.pop("state", {})
    tensors = {
        "x.weight": torch.zeros(256, 1, dtype=torch.uint8),
        "x.weight.absmax": torch.ones(8),
        "x.weight.quant_map": torch.linspace(-1, 1, 16),
        STATE: torch.tensor([*json.dumps(state).encode()], dtype=torch.uint8),
    }
    return {name: each for name, each in (tensors | changes).items() if each is not None}


def test_a_weight_of_one_level_is_that_level() -> None:
    tensors = packed()
    assert expand(find(table(tensors), method("bitsandbytes")), tensors).eq(-1).all()


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (packed(**{"x.weight": None}), "lack `x.weight`"),
        (packed(**{"x.weight": torch.zeros(255, 1).byte()}), "have 255 bytes in `x.weight` for 512 numbers"),
        (packed(**{"x.weight.absmax": None}), "lack `x.weight.absmax`"),
        (packed(**{"x.weight.absmax": torch.ones(7)}), "have `x.weight.absmax` in F32 and 7"),
        (packed(**{"x.weight.quant_map": torch.ones(15)}), "have `x.weight.quant_map` in F32 and 15"),
        (packed(**{STATE: torch.zeros(5000).byte()}), f"have more than 4096 bytes in `{STATE}`"),
        (packed(**{STATE: torch.zeros(9).byte()}), "have no `shape` and `blocksize`"),
        (packed(**{STATE: torch.tensor([*b"[1]"]).byte()}), "have no `shape` and `blocksize`"),
        (packed(state={"blocksize": 0}), "have no `shape` and `blocksize`"),
        (packed(state={"shape": [512]}), "have no `shape` and `blocksize`"),
        (packed(state={"shape": [8, -64]}), "have no `shape` and `blocksize`"),
        (packed(state={"shape": [8, 2**50]}), "have no `shape` and `blocksize`"),
        (packed(state={"shape": [800, 64]}), "have 256 bytes in `x.weight` for 51200 numbers"),
        (packed(state={"nested_offset": "x"}), "have no `shape` and `blocksize`"),
        (packed(state={"nested_blocksize": 4}), "have `x.weight.absmax` in F32"),
        ({"x.weight": torch.zeros(8, 4).char(), "x.SCB": torch.ones(7)}, "have `x.SCB` in F32 and 7"),
        ({"x.weight": torch.zeros(8, 4), "x.SCB": torch.ones(8)}, "have `x.weight` in F32"),
        ({"x.SCB": torch.ones(8)}, "lack `x.weight`"),
    ],
)
def test_what_does_not_fit_is_refused(tensors: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ModelUnavailable, match=message):
        find(table(tensors), method("bitsandbytes"))
