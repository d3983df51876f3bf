"""What keeps a model off all levels, and what it is told to be without reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from codegen.toys import toy_model  # noqa: E402
from inference.errors import ModelUnavailable  # noqa: E402
from inference.files.adapters import read_files  # noqa: E402
from inference.kernels.native import Library, open_library  # noqa: E402
from inference.levels.ladder import Climb  # noqa: E402
from inference.levels.served import Level  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.models.lora import load_adapters  # noqa: E402
from inference.models.weights import NarrowEmbedding  # noqa: E402
from tests.engine.adapters import toy_adapter  # noqa: E402
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


@pytest.fixture(scope="module")
def library() -> Library:
    torch.set_num_threads(1)
    found = open_library(threads=1)
    if found is None:
        pytest.skip("the extension isn't built")
    return found


def test_what_only_images_come_through_makes_nothing_heavy(library: Library) -> None:
    model = toy("llama")
    model.tower = torch.nn.Sequential(torch.nn.Conv2d(3, 400, 32))  # 1.2 million numbers
    served = bring_up(model, Options(library=library, fuse=False))
    assert (served.level, served.torch_heavy, served.exact) == (Level.NATIVE, False, True)


def test_want_of_memory_while_layers_are_fused_is_no_reason_for_a_lower_level(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("inference.loading.level.fuse_model", fail)
    with pytest.raises(MemoryError):
        bring_up(toy("llama"), Options(library=library, max_total_tokens=256))


def test_adapters_add_nothing_to_linears_that_text_does_not_come_through(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where they did, an image's rows were taken for the tokens of whatever step was computed."""
    model = toy_model("aya_vision")
    adapter = toy_adapter(model, ("q_proj",))
    assert any("vision" in path for path in adapter.sides)
    adapter.save(tmp_path)
    adapters = load_adapters([read_files("a", tmp_path)], model)
    Climb(model, Options(library=None, adapters=adapters))
    assert adapters.paths == [path for path in adapter.sides if "vision" not in path]
    assert f"adds to {len(adapter.sides) - len(adapters.paths)} linears that text" in caplog.text


def test_one_that_adds_to_no_others_is_refused(tmp_path: Path) -> None:
    model = toy_model("aya_vision")
    whole = toy_adapter(model, ("q_proj",))
    seeing = {path: sides for path, sides in whole.sides.items() if "vision" in path}
    replace(whole, sides=seeing).save(tmp_path)
    with pytest.raises(ModelUnavailable, match="text doesn't come through any of the linears"):
        Climb(model, Options(library=None, adapters=load_adapters([read_files("a", tmp_path)], model)))


def grows(by: float) -> Any:
    """Return a model in which what rounding changes grows from layer to layer, as in some deep ones."""
    model = toy("llama")
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda _, __, given: torch.sin(by * given))
    return model


def test_a_level_as_far_off_as_the_models_own_code_is_by_rounding_is_taken(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    served = bring_up(grows(15), Options(library=library, fuse=False))
    assert (served.level, served.exact) == (Level.NATIVE, True)
    assert 1e-5 < served.verdict.error < 1e-2
    assert "as the model's own are by rounding" in caplog.text
    assert served.reason == "fusing layers is switched off"


def test_what_is_allowed_for_rounding_is_bounded(library: Library) -> None:
    served = bring_up(grows(1000), Options(library=library, fuse=False))
    assert served.level in {Level.SEQUENTIAL, Level.UNCACHED}
    assert "level native can't be used in it (it doesn't reproduce its logits" in served.reason


@pytest.mark.parametrize("narrow", [False, True])
def test_an_embedding_for_each_layer_makes_nothing_heavy(library: Library, narrow: bool) -> None:
    model = toy("llama")
    model.embed_tokens_per_layer = torch.nn.Embedding(1000, 1200)
    if narrow:
        model.embed_tokens_per_layer = NarrowEmbedding(model.embed_tokens_per_layer.to(torch.bfloat16))
    served = bring_up(model, Options(library=library, fuse=False))
    assert (served.level, served.torch_heavy, served.exact) == (Level.NATIVE, False, True)
