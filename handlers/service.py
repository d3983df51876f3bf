"""What every operation works with."""

from __future__ import annotations

from dataclasses import dataclass, field

from handlers.metrics import Metrics
from handlers.quotas import Quotas
from handlers.settings import Settings
from inference.client import EngineClient


@dataclass(frozen=True, slots=True)
class Service:
    """The server's parts, made once by whoever starts it."""

    settings: Settings
    engine: EngineClient
    metrics: Metrics
    quotas: Quotas = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        quotas = Quotas(
            settings.requests_per_minute, settings.tokens_per_minute, processes=settings.api_workers
        )
        object.__setattr__(self, "quotas", quotas)
