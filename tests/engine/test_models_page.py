"""docs/models.md says how families are served: it adds up, and some of its rows are measured again."""

from __future__ import annotations

import pytest
import transformers

from codegen import families
from codegen.families import LEVELS, Row
from inference.kernels.native import open_library

MEASURED = (
    *("llama", "gpt2", "mixtral", "bloom", "mamba", "qwen3_5_text", "rwkv", "gemma4_text", "musicgen"),
    *("qwen2_vl", "blip"),
)


def row(family: str) -> Row:
    return next(row for row in families.read() if row.family == family)


def test_page_is_made_of_its_rows() -> None:
    rows = families.read()
    text = families.PAGE.read_text()
    assert text.endswith("\n".join(map(str, rows)) + "\n")
    assert "\n".join(families.counts(rows)) in text


def test_page_has_every_family_of_its_transformers() -> None:
    if f"transformers {transformers.__version__} " not in families.PAGE.read_text():
        pytest.skip("another version of transformers is installed than the one it was made with")
    assert [row.family for row in families.read()] == list(families.families())


def test_no_family_is_served_wrongly() -> None:
    assert [row for row in families.read() if row.runs == families.DIFFERS] == []


@pytest.mark.parametrize("family", MEASURED)
def test_row_is_true(family: str) -> None:
    said, found = row(family), families.measure(family, families.families()[family])
    assert (said.runs in LEVELS) is (found.runs in LEVELS)
    if open_library() is not None:
        assert said.runs == found.runs
        assert found.exact or not said.exact, "BLAS of another CPU may keep bits that it isn't said to keep"
