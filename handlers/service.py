"""What every operation works with."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from handlers.images.fetching import Fetcher
from handlers.images.hosts import Hosts
from handlers.images.memory import Memory
from handlers.metrics.metrics import Metrics
from handlers.quotas import Accounts, OwnAccounts, Quotas
from handlers.settings.table import Settings
from inference.files.adapters import adapter_names
from inference.frontend.client import EngineClient
from inference.text.lanes import Lane
from inference.types import VisionInfo


@dataclass(frozen=True, slots=True)
class Service:
    """The server's parts, made once by whoever starts it."""

    settings: Settings
    engine: EngineClient
    metrics: Metrics
    complete: Callable[[], bool] = lambda: True  # whether all processes behind the port have been ready
    accounts: Accounts = field(default_factory=OwnAccounts)  # shared with those processes
    quotas: Quotas = field(init=False)
    lane: Lane = field(init=False)  # for large bodies; one thread, as they need the interpreter
    fetcher: Fetcher = field(init=False)  # of images that are at an address
    image_memory: Memory = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        quotas = Quotas(
            settings.requests_per_minute,
            settings.tokens_per_minute,
            accounts=self.accounts,
            replicas=settings.replicas,
        )
        object.__setattr__(self, "quotas", quotas)
        object.__setattr__(self, "lane", Lane("bodies"))
        hosts = Hosts(settings.image_hosts, public=settings.image_fetching == "public")
        object.__setattr__(self, "fetcher", Fetcher(hosts, settings.max_image_fetch_size))
        object.__setattr__(self, "image_memory", Memory(settings.max_image_memory))

    @property
    def sees(self) -> bool:
        """Return whether requests may have images."""
        vision = self.vision
        return vision is not None and not vision.reason

    @property
    def adapters(self) -> Collection[str]:
        """Return what adapters requests can name: until the model is loaded first, those of the settings."""
        engine = self.engine
        return engine.model.adapters if engine.loaded else adapter_names(self.settings.lora_adapters)

    def names_adapter(self, model: object) -> bool:
        """Return whether a request's `model` is an adapter that was loaded, at the start or later."""
        return isinstance(model, str) and model in self.adapters

    @property
    def encodes(self) -> bool:
        """Return whether an encoder reads prompts, so that their tokens have no log-probabilities."""
        return self.engine.loaded and bool(self.engine.model.decoder_start)

    @property
    def vision(self) -> VisionInfo | None:
        """Return how the model's prompts have images; None until it is loaded first, or if they have none.

        It goes on to be known while the engine is started again or drains.
        """
        return self.engine.model.vision if self.engine.loaded else None
