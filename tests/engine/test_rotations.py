"""Texts are transformers' own where a model's rotary embedding is scaled, whoever runs beside them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, PreTrainedModel

import inference.planning.described
from codegen.toys import generate_whole
from inference.errors import ModelUnavailable
from inference.loading.source import Source
from tests.engine.cores import Session, best, config, request
from tests.engine.models import VOCABULARY, generate, prompts, save_model

LONG, SHORT = prompts(170, 30)
FAR, NEAR = prompts(270, 58)
HALF = {"llama": 8, "minicpm3": 4, "phi3": 8}  # of what is rotated of a head
NEVER = VOCABULARY + 1


def scaled(directory: Path, family: str, rope: dict[str, Any], **members: Any) -> PreTrainedModel:
    """Return a toy whose saved configuration is given another rotation."""
    save_model(family, directory)
    path = directory / "config.json"
    said = json.loads(path.read_text())
    del said["rope_parameters"]
    path.write_text(json.dumps({**said, "rope_scaling": rope, **members}))
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    return model


def longrope(family: str, **more: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "short_factor": [1.0] * HALF[family],
        "long_factor": [4.0] * HALF[family],
        **more,
    }


def said(session: Session, *texts: tuple[int, ...], tokens: int = 15) -> list[list[int]]:
    heard = session.run(
        request(str(at), text, tokens=tokens, ignore_eos=True) for at, text in enumerate(texts)
    )
    return [heard.tokens(str(at)) for at in range(len(texts))]


def own(model: PreTrainedModel, *texts: tuple[int, ...], tokens: int = 15) -> list[list[int]]:
    return [generate(model, text, tokens, eos_token_id=NEVER) for text in texts]


@pytest.mark.parametrize("family", ["llama", "minicpm3"])
def test_long_text_changes_no_short_one_beside_it_nor_takes_its_cached_beginning(
    family: str, tmp_path: Path
) -> None:
    model = scaled(tmp_path, family, longrope(family, original_max_position_embeddings=128))
    expected = own(model, LONG, SHORT)
    session = Session(config(tmp_path))
    assert session.level == "sequential"
    assert said(session, LONG, SHORT) == expected
    assert said(session, LONG[:64], tokens=4) == own(model, LONG[:64], tokens=4)
    assert said(session, LONG) == expected[:1]
    session.close()


def test_texts_that_stay_short_run_in_batches(tmp_path: Path) -> None:
    model = scaled(tmp_path, "llama", longrope("llama", original_max_position_embeddings=128))
    session = Session(config(tmp_path, max_total_tokens=128))
    assert session.level == best("fused", "paged+merged")
    assert said(session, NEAR, SHORT, tokens=40) == own(model, NEAR, SHORT, tokens=40)
    session.close()


@pytest.mark.parametrize("tokens", [8, 24])
def test_text_that_becomes_long_is_computed_again_as_a_whole(tmp_path: Path, tokens: int) -> None:
    model = scaled(tmp_path, "phi3", longrope("phi3"), original_max_position_embeddings=64)
    session = Session(config(tmp_path))
    assert session.level == "sequential"
    assert said(session, NEAR, SHORT, tokens=tokens) == own(model, NEAR, SHORT, tokens=tokens)
    assert said(session, NEAR, tokens=7) == [generate_whole(model, NEAR, 7)]
    session.close()


@pytest.mark.parametrize("positions", [100, 300])
def test_dynamic_rotation_within_its_positions_is_the_models_own(tmp_path: Path, positions: int) -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0}
    model = scaled(tmp_path, "llama", rope, max_position_embeddings=positions)
    texts = [text for text in (FAR, NEAR) if len(text) + 20 <= positions]
    session = Session(config(tmp_path))
    assert session.level == best("fused", "paged+merged")
    assert said(session, *texts, tokens=20) == own(model, *texts, tokens=20)
    session.close()
    with pytest.raises(ModelUnavailable, match=f"<= {positions}, .* its dynamic scaling doesn't add to them"):
        Session(config(tmp_path, max_total_tokens=positions + 1))


def test_texts_stay_as_long_as_the_level_was_proven_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = scaled(tmp_path, "llama", longrope("llama", original_max_position_embeddings=64))
    needed = inference.planning.described._kv_elements
    room = 128 * 4 * needed(model.config)
    # Twice what the model needs, until it is seen to need less
    monkeypatch.setattr(inference.planning.described, "_kv_elements", lambda *given: 2 * needed(*given))
    found = Source.machine
    monkeypatch.setattr(Source, "machine", lambda *given: replace(found(*given), cache_bytes=room))
    session = Session(config(tmp_path))
    first, second = (line for line in session.progress if line.startswith("Plan: "))
    assert "up to 64 tokens" in first
    assert "KV cache 128 tokens" in second
    assert session.info.max_total_tokens == 64
    assert session.level == best("fused", "paged+merged")  # beyond 64 it would be wrong
    session.close()


def test_yarn_extends_what_a_model_takes(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    model = scaled(tmp_path, "llama", rope, max_position_embeddings=64)
    session = Session(config(tmp_path))
    assert session.info.max_total_tokens == 256
    assert session.level == best("fused", "paged+merged")
    assert said(session, LONG, SHORT, tokens=40) == own(model, LONG, SHORT, tokens=40)
    session.close()


def test_linear_scaling_extends_it_for_who_asks(tmp_path: Path) -> None:
    model = scaled(tmp_path, "llama", {"rope_type": "linear", "factor": 4.0}, max_position_embeddings=64)
    session = Session(config(tmp_path, max_total_tokens=250))
    assert said(session, LONG, SHORT, tokens=40) == own(model, LONG, SHORT, tokens=40)
    session.close()


@pytest.mark.parametrize("tokens", [2, 3, 4])
def test_texts_shorter_than_what_levels_are_proved_on_are_served_at_the_same_level(
    tokens: int, tmp_path: Path
) -> None:
    save_model("llama", tmp_path)
    session = Session(config(tmp_path, max_total_tokens=tokens))
    assert session.level == best("fused", "paged+merged")
    session.close()
