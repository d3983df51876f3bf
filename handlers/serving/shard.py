"""`parley shard`: a share of a model that is served by another machine (`parley serve --remote-shards`)."""

from __future__ import annotations

import logging
import signal
from typing import NoReturn

from handlers.serving import logs
from handlers.serving.serve import set_hub_token
from handlers.settings.reading import Reading
from inference import last_resorts
from inference.environment import prepare_environment
from inference.shards.joining import be_a_shard
from inference.shards.messages import Own
from inference.signals import end_by_hangup

logger = logging.getLogger("parley")

OWN = frozenset(
    {
        *("master_addr", "master_port", "model_id", "huggingface_hub_cache", "hf_token", "compute_threads"),
        *("log_level", "json_output", "log_colorize", "log_prompts"),
    }
)


def shard(reading: Reading) -> NoReturn:
    """Be a shard of the server at --master-addr until a signal ends it, with 0."""
    settings = reading.settings
    logs.follow(settings)
    for warning in (*reading.warnings, *_passed_over(reading)):
        logger.warning("%s", warning)
    last_resorts.install()
    prepare_environment()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    end_by_hangup()
    set_hub_token(settings)
    own = Own(settings.model_id, settings.huggingface_hub_cache, settings.compute_threads)
    be_a_shard(settings.master_addr, settings.master_port, own)


def _passed_over(reading: Reading) -> list[str]:
    """Return a warning for each value that was given and isn't this machine's to decide."""
    others = [given for given in reading.given if given.setting.attribute not in OWN]
    return [
        f"{given} has no effect here: a shard computes what its server is started with" for given in others
    ]


def _end(number: int, frame: object) -> NoReturn:
    raise SystemExit(0)
