from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.files.generation_config import unheeded


def said(directory: Path, **members: Any) -> str:
    (directory / "generation_config.json").write_text(json.dumps(members))
    return unheeded(directory)


def test_what_requests_have_to_say_is_named(tmp_path: Path) -> None:
    line = said(tmp_path, do_sample=True, temperature=0.6, top_k=20, eos_token_id=[1, 2], use_cache=True)
    assert line == (
        "generation_config.json has do_sample=True, temperature=0.6, top_k=20: requests say so themselves, "
        "as with TGI"
    )


@pytest.mark.parametrize(
    "members", [{}, {"temperature": 1.0, "top_p": None, "num_beams": 1, "do_sample": False}]
)
def test_what_changes_nothing_is_not_named(members: dict[str, Any], tmp_path: Path) -> None:
    assert said(tmp_path, **members) == ""


def test_model_without_the_file_has_no_line(tmp_path: Path) -> None:
    assert unheeded(tmp_path) == ""


def test_long_values_are_cut(tmp_path: Path) -> None:
    assert len(said(tmp_path, suppress_tokens=[*range(500)])) < 200
