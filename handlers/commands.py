"""The commands that print something and end."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING

from handlers.settings.reading import Reading
from handlers.version import TGI_VERSION, version

if TYPE_CHECKING:
    from inference.types import ModelInfo

LIBRARIES = ("torch", "transformers", "tokenizers", "connexion", "starlette", "uvicorn", "jsonschema-rs")


def print_schema() -> int:
    """Print the OpenAPI document as JSON."""
    import openapi

    print(json.dumps(openapi.load(), indent=2, ensure_ascii=False))
    return 0


def environment(reading: Reading) -> int:
    """Print what a report of a fault needs: versions, the machine, settings that were given."""
    rows = {"parley": version(), "speaks TGI": TGI_VERSION, "Python": platform.python_version()}
    rows |= {name: _version_of(name) for name in LIBRARIES}
    rows |= {"platform": platform.platform(), "CPU cores": _cores(), "memory": _memory()}
    rows |= {"compute type": reading.settings.compute_type}
    for name, value in rows.items():
        print(f"{name}: {value}")
    print("settings given:" if reading.given else "settings given: none")
    for given in reading.given:
        print(f"  {given}")
    _complain(reading)
    return 0


def check(reading: Reading) -> int:
    """Load everything as `serve` would, without serving; 1 if that fails."""
    from handlers.serving.serve import load
    from inference.errors import ModelUnavailable

    _complain(reading)
    try:
        model = asyncio.run(load(reading.settings, partial(print, flush=True)))
    except ModelUnavailable as error:
        print(f"parley: {error}", file=sys.stderr)
        return 1
    for line in _describe(model):
        print(line)
    print("The settings and the model are in order")
    return 0


def download_weights(reading: Reading) -> int:
    """Fetch the model's files; 1 if they can't be had."""
    from handlers.serving.serve import set_hub_token
    from inference.errors import ModelUnavailable
    from inference.files.adapters import find_adapters
    from inference.files.checkpoint import find_checkpoint
    from inference.text.files import find_files

    _complain(reading)
    if reading.settings.model_id is None:
        print("parley: name a model, e.g. parley download-weights org/name", file=sys.stderr)
        return 2
    set_hub_token(reading.settings)
    progress = partial(print, flush=True)  # it may take long, and its lines be read from a pipe
    try:
        config = reading.settings.engine_config().model
        found = find_checkpoint(config, progress)
        find_files(config, progress)  # of the tokenizer, of which there may be more
        adapters = find_adapters(config, progress)
    except ModelUnavailable as error:
        print(f"parley: {error}", file=sys.stderr)
        return 1
    print(f"{reading.settings.model_id} is in {found.path}")
    for adapter in adapters:
        print(f"The adapter {adapter.name} is in {adapter.directory}")
    return 0


def _complain(reading: Reading) -> None:
    for warning in reading.warnings:
        print(f"parley: {warning}", file=sys.stderr)


def _describe(model: ModelInfo) -> Iterator[str]:
    yield f"Model: {model.id}, revision {model.sha or 'local'}, {model.dtype} on {model.device_type}"
    yield f"Runs at level {model.level}"
    yield f"A prompt holds up to {model.max_input_tokens} tokens, with its answer {model.max_total_tokens}"
    yield f"A step computes up to {model.max_batch_prefill_tokens} tokens"
    yield f"The KV cache holds {model.max_batch_total_tokens} tokens"


def _version_of(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cores() -> str:
    from inference.machine import usable_cores

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    usable = usable_cores()  # less by a quota, or by two threads of a core
    return f"{cores}, {usable} of them to compute with" if usable < cores else f"{cores}"


def _memory() -> str:
    from inference.machine import free_memory
    from inference.planning.plan import GIB

    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{installed / GIB:.1f} GiB, {free_memory() / GIB:.1f} GiB of it free"
