"""Quantised weights are data of strangers, too: what doesn't fit together is refused in words."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor  # noqa: E402

from inference.errors import ModelUnavailable  # noqa: E402
from inference.quantised.method import Method  # noqa: E402
from inference.quantised.stored import READERS  # noqa: E402
from tests.engine import quantised as packed  # noqa: E402
from tests.engine.quantised import Packer  # noqa: E402
from tests.unit.inference.quantised.tables import DTYPES, expand, table  # noqa: E402

ROWS, COLUMNS = 32, 64
MOST = 8  # numbers that a byte of a file stands for: of one bit each
GROUPS = {"g": {"weights": {"num_bits": 4, "group_size": 32}}}

Form = tuple[str, dict[str, Any], dict[str, Tensor]]


def form(name: str, packer: Packer, **described: Any) -> Form:
    """Return a weight as a format stores it, with the format's name and settings."""
    random = np.random.default_rng(1)
    tensors, _ = packer(random.normal(size=(ROWS, COLUMNS)).astype(np.float32), random)
    return name, described, {f"x.{part}": each.contiguous() for part, each in tensors.items()}


FORMS = [
    form("gptq", packed.gptq(4, 32), bits=4, group_size=32),
    form("gptq", packed.gptq(3, 32, g_idx=False), bits=3, group_size=32),
    form("awq", packed.awq(32), bits=4, group_size=32),
    form("awq", packed.awq(32, "gemv"), bits=4, group_size=32, version="gemv"),
    form("fp8", packed.fp8((16, 16)), weight_block_size=[16, 16]),
    form("mxfp8", packed.fp8((1, 32), exponents=True)),
    form("compressed-tensors", packed.in_words_with_scales(4, 32, zeros=True), config_groups=GROUPS),
    form("compressed-tensors", packed.int8_rows, config_groups=GROUPS),
    form("bitsandbytes", packed.bnb_8, load_in_8bit=True),
    form("bitsandbytes", packed.bnb_4(64, nested=16), load_in_4bit=True),
]
NONSENSE = st.sampled_from([0, -1, 1, 3, 7, 2**40, 1.5, True, None, "", "x", [], [0, 1], {}, {"x": 1}])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_what_does_not_fit_together_is_refused(data: st.DataObject) -> None:
    name, described, tensors = data.draw(st.sampled_from(FORMS))
    described, tensors = dict(described), dict(tensors)
    for _ in range(data.draw(st.integers(1, 3))):
        _spoil(data, described, tensors)
    with suppress(ModelUnavailable):
        found = READERS[name](table(tensors), Method(name, described, name))
        for weight, expansion in found.weights.items():
            stored = sum(tensors[part].nbytes for part in expansion.parts.values())
            assert expansion.count <= MOST * stored
            expand(found, tensors, weight)


@pytest.mark.parametrize("at", range(len(FORMS)))
def test_what_fits_together_is_expanded(at: int) -> None:
    name, described, tensors = FORMS[at]
    found = READERS[name](table(tensors), Method(name, described, name))
    assert expand(found, tensors).shape == (ROWS, COLUMNS)
    assert found.used() == set(tensors)


def _spoil(data: st.DataObject, described: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Change something that is said of a weight, or one of its tensors."""
    if not tensors or data.draw(st.booleans()):
        said = data.draw(st.sampled_from(sorted({*described, "bits", "group_size"})))
        described[said] = data.draw(NONSENSE)
        return
    name = data.draw(st.sampled_from(sorted(tensors)))
    kind = data.draw(st.sampled_from(["missing", "other shape", "other dtype", "other numbers"]))
    tensor = tensors.pop(name)
    if kind == "other shape":
        shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 4, 8, 16, 31, 32, 64]), max_size=4))
        if np.prod(shape, dtype=int) <= 2**14:
            tensors[name] = torch.zeros(shape).to(tensor.dtype)
    elif kind == "other dtype":
        tensors[name] = tensor.float().to(data.draw(st.sampled_from([*DTYPES])))
    elif kind == "other numbers":
        octets = torch.randint(0, 256, (tensor.nbytes,), dtype=torch.uint8)
        tensors[name] = octets.view(tensor.dtype).view(tensor.shape)
