from __future__ import annotations

import gc
import weakref

import pytest

pytest.importorskip("torch")

from inference.gpu.attention import PagedModel
from inference.loading.level import Options, bring_up
from tests.unit.inference.gpu.device_models import BLOCKS, device_ops, device_toy


def test_a_cache_is_freed_with_the_model_that_computes_over_it() -> None:
    """On a GPU one is made to measure memory by, and what is left then is the next one's."""
    served = bring_up(device_toy("gpt2"), Options(library=None, ops=device_ops(), max_total_tokens=256))
    assert served.make_model is not None
    model = served.make_model(BLOCKS)
    assert isinstance(model, PagedModel)
    keys = [weakref.ref(cache[0]) for cache in model.caches]
    del model
    gc.collect()
    assert {each() for each in keys} == {None}
