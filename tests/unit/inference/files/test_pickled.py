"""What pickled weights are said to hold, without reading them."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from inference.errors import ModelUnavailable  # noqa: E402
from inference.files.checkpoint import read_weights  # noqa: E402
from inference.files.pickled import read_table  # noqa: E402


class Code:
    """What a pickle can hold besides weights."""

    def __reduce__(self) -> tuple[object, ...]:
        return print, ("code ran",)


def test_pickles_are_counted_by_type_and_shape(tmp_path: Path) -> None:
    given = {
        "a": torch.zeros(3, 4, dtype=torch.bfloat16),
        "b": torch.zeros(5),
        "q": torch.zeros(7, dtype=torch.int32),
        "step": 3,
    }
    torch.save(given, tmp_path / "pytorch_model.bin")
    weights = read_weights(tmp_path, pickled=True)
    assert (weights.floats, weights.matrices, weights.other_bytes) == (17, 12, 28)
    assert weights.dtypes == {"a": "bfloat16", "b": "float32"}
    assert read_weights(tmp_path).floats == 0  # not without being told to


def test_code_in_a_pickle_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"a": Code()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelUnavailable, match="it is damaged, or holds more"):
        read_table(tmp_path / "pytorch_model.bin")
    assert "code ran" not in capsys.readouterr().out
