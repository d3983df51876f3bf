"""What every operation works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from handlers.engine_settings import processes
from handlers.metrics import Metrics
from handlers.quotas import Quotas
from handlers.settings import Settings
from inference.client import EngineClient
from inference.text.lanes import Lane


@dataclass(frozen=True, slots=True)
class Service:
    """The server's parts, made once by whoever starts it."""

    settings: Settings
    engine: EngineClient
    metrics: Metrics
    complete: Callable[[], bool] = lambda: True  # whether all processes behind the port have been ready
    quotas: Quotas = field(init=False)
    lane: Lane = field(init=False)  # for large bodies; one thread, as they need the interpreter

    def __post_init__(self) -> None:
        settings = self.settings
        quotas = Quotas(
            settings.requests_per_minute, settings.tokens_per_minute, processes=processes(settings)
        )
        object.__setattr__(self, "quotas", quotas)
        object.__setattr__(self, "lane", Lane("bodies"))
