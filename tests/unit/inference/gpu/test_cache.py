from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from inference.gpu.cache import device_cache  # noqa: E402
from inference.kv_cache.blocks import PAGE  # noqa: E402
from inference.models.paged import LayerShape  # noqa: E402


def test_each_layer_has_its_own_pages_and_one_that_is_nobodys() -> None:
    shapes = [LayerShape(2, 8, 4), LayerShape(1, 16, 16)]
    found = device_cache(shapes, 3, torch.float16, torch.device("cpu"))
    assert [(4, PAGE, 2, 8), (4, PAGE, 1, 16)] == [tuple(keys.shape) for keys, _ in found]
    assert [(4, PAGE, 2, 4), (4, PAGE, 1, 16)] == [tuple(values.shape) for _, values in found]
    assert len({each.data_ptr() for layer in found for each in layer}) == 4
    assert {each.dtype for layer in found for each in layer} == {torch.float16}
