"""What keeps a model off all levels, and what it is told to be without reason."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from inference.errors import ModelUnavailable  # noqa: E402
from inference.kernels.native import open_library  # noqa: E402
from inference.ladder import Climb  # noqa: E402
from inference.level import Options, bring_up  # noqa: E402
from inference.served import Level  # noqa: E402
from tests.unit.inference.toy_models import toy  # noqa: E402


def fails_with(error: Exception) -> Any:
    def fail(*_: object) -> None:
        raise error

    model = toy("llama")
    model.register_forward_pre_hook(fail)
    return model


def test_a_model_that_takes_no_text_alone_is_refused_in_words() -> None:
    model = fails_with(TypeError("forward() missing 1 required positional argument: 'pixel_values'"))
    said = r"its own code takes no text alone \(TypeError: forward\(\) missing 1 .* 'pixel_values'\)"
    with pytest.raises(ModelUnavailable, match=said):
        Climb(model, Options(library=None))


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_shortage_of_memory_is_told_as_such(error: Exception) -> None:
    with pytest.raises(type(error)):
        Climb(fails_with(error), Options(library=None))


def test_hidden_tokens_are_no_damage() -> None:
    def hide(_: object, __: object, output: Any) -> None:
        output.logits[..., 90:] = -torch.inf

    model = toy("llama")
    model.register_forward_hook(hide)
    assert Climb(model, Options(library=None)).proof.finite


def test_what_only_images_come_through_makes_nothing_heavy() -> None:
    torch.set_num_threads(1)
    library = open_library(threads=1)
    if library is None:
        pytest.skip("the extension isn't built")
    model = toy("llama")
    model.tower = torch.nn.Sequential(torch.nn.Conv2d(3, 400, 32))  # 1.2 million numbers
    served = bring_up(model, Options(library=library, fuse=False))
    assert (served.level, served.torch_heavy, served.exact) == (Level.NATIVE, False, True)
