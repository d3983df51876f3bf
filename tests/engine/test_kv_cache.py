"""The type of the KV cache: what is asked for, what follows from the model, and what can't be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inference.config import EngineConfig, ModelConfig
from inference.engine.engine import TorchCore
from inference.errors import ModelUnavailable
from inference.kernels.native import open_library
from tests.engine.cores import Session, config, request
from tests.engine.models import generate, make_model, prompts

PROMPTS = prompts(10, 40, 90)
FLOATS = 3 * 2 * 16 * 2  # of a token: layers, heads, width, key and value


@pytest.fixture
def native() -> None:
    if open_library() is None:
        pytest.skip("the extension isn't built")


def started(directory: Path, asked: str, **model: str) -> Session:
    plain = replace(config(directory), kv_cache_dtype=asked)
    return Session(replace(plain, model=replace(plain.model, **model)))  # type: ignore[arg-type]


def rounding() -> str:
    """Return the cache's type with --dtype bfloat16: that of linears' inputs."""
    library = open_library()
    return "bfloat16" if library is not None and library.has_bf16 else "float32"


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(
    ("asked", "model", "used"),
    [
        ("auto", {}, "float32"),
        ("auto", {"quantize": "int8"}, "bfloat16"),
        ("auto", {"dtype": "bfloat16"}, rounding()),
        ("float32", {"quantize": "int8"}, "float32"),
        ("bfloat16", {}, "bfloat16"),
    ],
)
def test_plan_and_level_follow_what_is_asked_for(
    directory: Path, asked: str, model: dict[str, str], used: str
) -> None:
    session = started(directory, asked, **model)
    plans, (level,) = (
        [line for line in session.progress if line.startswith(first)] for first in ("Plan", "Level")
    )
    assert len(plans) == 1  # the first one was right
    assert f"tokens x {FLOATS * (2 if used == 'bfloat16' else 4):,} B" in plans[0]
    assert f"fused (KV cache in {used};" in level
    assert session.info.deterministic
    session.close()


@pytest.mark.usefixtures("native")
def test_texts_are_the_same_alone_and_together_with_a_bfloat16_cache(directory: Path) -> None:
    session = started(directory, "bfloat16")
    names = [str(index) for index in range(len(PROMPTS))]
    alone = [session.run([request(name, PROMPTS[int(name)])]).tokens(name) for name in names]
    again = [f"again {name}" for name in names]
    together = session.run([request(name, prompt) for name, prompt in zip(again, PROMPTS, strict=True)])
    assert [together.tokens(name) for name in again] == alone
    own = [generate(make_model("llama"), prompt, 20) for prompt in PROMPTS]
    assert [tokens[0] for tokens in alone] == [tokens[0] for tokens in own]
    session.close()


@pytest.mark.parametrize("asked", ["auto", "float32"])
def test_without_the_native_kernels_the_cache_has_the_type_that_is_computed_in(
    directory: Path, asked: str
) -> None:
    session = Session(replace(config(directory, native_kernels=False), kv_cache_dtype=asked))
    assert f"tokens x {4 * FLOATS:,} B" in session.progress[0]
    assert any("(KV cache in float32;" in line for line in session.progress)
    session.close()


def test_bfloat16_that_cannot_be_is_refused_before_the_weights_are_read(directory: Path) -> None:
    core = TorchCore(
        EngineConfig(
            model=ModelConfig(model_id=str(directory)), native_kernels=False, kv_cache_dtype="bfloat16"
        )
    )
    progress: list[str] = []
    with pytest.raises(
        ModelUnavailable, match=r"--kv-cache-dtype bfloat16 needs the native kernels, but native kernels are"
    ):
        core.load(progress.append)
    assert not any(line.startswith(("Plan", "Loaded")) for line in progress)
