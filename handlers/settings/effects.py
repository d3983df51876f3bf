"""When a setting has an effect at all, beside the others that were chosen: a column of the table of settings.

Only what is known before a model is loaded, and without torch, is told; what the model or the machine makes
of the rest, the log and `/info` say later.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from handlers.settings.row import Effect
from inference.errors import ModelUnavailable
from inference.files.model_files import local_directory

if TYPE_CHECKING:
    from handlers.settings.table import Settings

# one of these is there wherever torch could find a GPU: NVIDIA's, WSL's, AMD's
GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/gpus", "/dev/dxg", "/dev/kfd")


def _may_be_on_gpu(settings: Settings) -> bool:
    return settings.device == "cuda" or (settings.device == "auto" and any(map(os.path.exists, GPU_FILES)))


def _of_the_hub(settings: Settings) -> bool:
    if settings.model_id is None:
        return False
    try:
        return local_directory(settings.model_id) is None
    except ModelUnavailable:  # which ends the start with its reason
        return True


ON_GPU = Effect(_may_be_on_gpu, "it is for a GPU, and the model runs on the CPU")
FASTER_ON_GPU = replace(ON_GPU, neutral=(False, (0,)))  # what is off is off on the CPU, too
ON_CPU = Effect(lambda settings: settings.device != "cuda", "it is for the CPU, and the model runs on a GPU")
GUESSED = replace(
    ON_CPU, otherwise="on a GPU the next step begins before a step's tokens are known", neutral=(0,)
)
OF_THE_HUB = Effect(_of_the_hub, "the model isn't fetched from the hub")
OF_OTHERS = Effect(
    lambda settings: settings.model_id is not None, "the model that ships with Parley has no code of its own"
)
TRACED = Effect(
    lambda settings: settings.otlp_endpoint is not None, "without --otlp-endpoint nothing is traced"
)
SEVERAL_WORKERS = Effect(
    lambda settings: settings.api_workers > 1, "it is for several --api-workers", neutral=(0,)
)
SEVERAL_SHARDS = Effect(
    lambda settings: settings.num_shard > 1 and settings.sharded is not False,
    "it is for several --num-shard",
    neutral=(0,),
)
SHARDS_ELSEWHERE = Effect(
    lambda settings: settings.remote_shards > 0 and SEVERAL_SHARDS.holds(settings),
    "no shard is on another machine, by --remote-shards",
)
SEVERAL_REPLICAS = Effect(lambda settings: settings.replicas > 1, "it is for several --replicas")
ENGINE_APART = Effect(
    lambda settings: settings.engine_process,
    "without --engine-process nobody can end the engine's steps",
    neutral=(0,),
)
ENGINE_RESTARTED = replace(ENGINE_APART, otherwise="without --engine-process nobody starts the engine again")
LATER_ADAPTERS = Effect(
    lambda settings: settings.lora_directory is not None,
    "without --lora-directory no adapter is loaded later",
)
CACHED = Effect(lambda settings: settings.prefix_caching, "there is no prefix cache, by --prefix-caching")
GRAMMARS = Effect(
    lambda settings: not settings.disable_grammar_support, "--disable-grammar-support refuses all grammars"
)
FETCHED = Effect(lambda settings: settings.image_fetching != "off", "--image-fetching off fetches none")
BELOW_ALL = Effect(
    lambda settings: settings.max_concurrent_requests_per_key < settings.max_concurrent_requests,
    "--max-concurrent-requests allows all keys together no more",
)
LARGER_WITH_IMAGES = Effect(
    lambda settings: settings.image_payload_limit > settings.payload_limit,
    "--payload-limit lets bodies of that size in already",
)
