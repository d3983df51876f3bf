"""What every operation works with."""

from __future__ import annotations

from dataclasses import dataclass

from handlers.metrics import Metrics
from handlers.settings import Settings
from inference.client import EngineClient


@dataclass(frozen=True, slots=True)
class Service:
    """The server's parts, made once by whoever starts it."""

    settings: Settings
    engine: EngineClient
    metrics: Metrics
