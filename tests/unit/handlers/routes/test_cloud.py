from __future__ import annotations

from typing import Any

import pytest

from handlers.routes.chat import chat_completions
from handlers.routes.cloud import compile_shapes, operation_of
from handlers.routes.completions import completions
from handlers.routes.generate import compat_generate
from openapi import load

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module", params=["compiled", "reference"])
def validator(request: pytest.FixtureRequest) -> str:
    compile_shapes(load()["components"], request.param)
    return str(request.param)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"inputs": "Hi"}, compat_generate),
        ({"messages": MESSAGES}, chat_completions),
        ({"prompt": "Hi"}, completions),
        ({"prompt": "Hi", "messages": MESSAGES, "inputs": "Hi"}, compat_generate),
        ({"prompt": "Hi", "messages": MESSAGES}, chat_completions),
        ({"prompt": "Hi", "messages": MESSAGES, "inputs": 5}, chat_completions),
        ({"prompt": ["Hi"], "inputs": "Hi", "parameters": "none"}, completions),
    ],
)
def test_the_first_shape_that_fits_answers(body: Any, expected: Any, validator: str) -> None:
    assert operation_of(body, validator) is expected
