"""Whether texts behind an encoder go on together: of 16 bits, as GPUs compute in, float32 is the proof."""

from __future__ import annotations

from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch")

from transformers import PreTrainedModel  # noqa: E402

from codegen.toys import toy_model  # noqa: E402
from inference.encoded.climb import bring_up_encoded  # noqa: E402
from inference.levels.options import Options  # noqa: E402
from inference.levels.served import Served  # noqa: E402


def served(model: PreTrainedModel) -> Served:
    return bring_up_encoded(model, Options(library=None, dtype=model.dtype, max_total_tokens=256))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", ["t5", "bart+encoder", "m2m_100", "t5gemma"])
def test_texts_go_on_together(family: str, dtype: str) -> None:
    model = toy_model(family).to(getattr(torch, dtype))
    found = served(model)
    assert found.together, found.reason
    assert model.dtype == getattr(torch, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_those_whose_places_nobody_tells_go_on_one_at_a_time(dtype: str) -> None:
    with patch("inference.encoded.places._PAST", "by another name"):
        found = served(toy_model("bart+encoder").to(getattr(torch, dtype)))
    assert not found.together
    assert "batches of texts can't be done (" in found.reason


def test_without_a_proof_those_of_16_bits_go_on_one_at_a_time() -> None:
    with patch("inference.encoded.climb.in_float32", side_effect=TypeError("no")):
        found = served(toy_model("t5").to(torch.bfloat16))
    assert not found.together
    assert "batches of texts can't be done (in float32 its code fails, TypeError: no)" in found.reason


def test_a_moments_want_of_memory_takes_no_batches_away_for_good() -> None:
    with (
        patch("inference.encoded.climb.in_float32", side_effect=torch.OutOfMemoryError("no")),
        pytest.raises(torch.OutOfMemoryError),
    ):
        served(toy_model("t5").to(torch.bfloat16))
