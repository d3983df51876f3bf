"""A server whose model loads as long as a test likes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from inference.fakes.core import FakeCore, FakeModel
from inference.frontend.client import EngineClient
from inference.text.pipeline import TextPipeline
from inference.text.stand_in import plausible_tokens, stand_in_text
from inference.types import ModelInfo
from tests.support import live_server, make_service


@contextmanager
def loading(**settings: Any) -> Iterator[httpx.Client]:
    """Serve while the model loads."""
    ends = threading.Event()
    service = make_service(**settings)
    tokenizer, template, _ = stand_in_text()
    engine = EngineClient(
        LateCore(ends),
        service.settings.engine_config(),
        lambda: TextPipeline(tokenizer, template, workers=1),
    )
    late = make_service(service.settings, engine)
    with live_server(late, wait=False) as live, live.client() as client:
        try:
            yield client
        finally:
            ends.set()


class LateCore(FakeCore):
    """Loads its model when told."""

    def __init__(self, ends: threading.Event) -> None:
        super().__init__(fake_model())
        self._ends = ends

    def load(self, progress: Callable[[str], None]) -> ModelInfo:
        """Wait, then load."""
        self._ends.wait()
        return super().load(progress)


def fake_model() -> FakeModel:
    """Return a model over the stand-in's tokens."""
    tokenizer, _, eos = stand_in_text()
    return FakeModel(tokens=plausible_tokens(tokenizer), eos_token_id=eos)
