"""`parley shard`: a share of a model that is served by another machine (`parley serve --remote-shards`)."""

from __future__ import annotations

import logging
import signal
from typing import NoReturn

from handlers import logs
from handlers.serve import set_hub_token
from handlers.settings_reading import Reading
from inference import last_resorts
from inference.environment import prepare_environment
from inference.shards.joining import be_a_shard
from inference.signals import end_by_hangup

logger = logging.getLogger("parley")


def shard(reading: Reading) -> NoReturn:
    """Be a shard of the server at --master-addr until a signal ends it, with 0."""
    settings = reading.settings
    logs.follow(settings)
    last_resorts.install()
    prepare_environment()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    end_by_hangup()
    set_hub_token(settings)
    be_a_shard(settings.master_addr, settings.master_port, settings.model_id)


def _end(number: int, frame: object) -> NoReturn:
    raise SystemExit(0)
