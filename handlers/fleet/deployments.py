"""The deployments of Ray Serve: the replicas, and the gateway where it isn't in a process of its own.

`serve run handlers.fleet.deployments:app model-id=org/model replicas=2` has a cluster serve them behind its
own proxies; `parley serve --replicas 2` needs the first of them alone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from handlers.fleet import router, shares
from handlers.fleet.connection import connect, nodes
from handlers.fleet.gateway import Gateway
from handlers.fleet.handles import RayFleet
from handlers.fleet.lines import configure
from handlers.fleet.replica import Replica
from handlers.fleet.stack import stack
from handlers.settings.reading import read
from handlers.settings.row import SettingsError
from handlers.settings.table import SETTINGS, Settings
from inference import last_resorts

UNBOUNDED = 1_000_000  # requests: a replica says by itself, and in TGI's words, when it has too many
START_ATTEMPTS = 2  # a model that can't be loaded can't be loaded by another replica
QUIET = {"log_level": "WARNING", "enable_access_log": False}  # Ray Serve's own log; the replicas' is Parley's
FAREWELL_SECONDS = 5.0  # beyond the time that running requests have


def replicas(settings: Settings, share: shares.Share) -> Application:
    """Return the replicas, each with its share of a machine."""
    deployment = serve.deployment(
        Replica,
        name="Replica",
        num_replicas=settings.replicas,
        max_ongoing_requests=UNBOUNDED,
        graceful_shutdown_timeout_s=settings.graceful_termination_timeout + FAREWELL_SECONDS,
        max_constructor_retry_count=START_ATTEMPTS,
        request_router_config=RequestRouterConfig(request_router_class=router.NAME),
        ray_actor_options={"num_cpus": share.cpus, "num_gpus": share.gpus},
        logging_config=QUIET,
    )
    return deployment.bind(shares.of_a_replica(settings, share), share)


def app(arguments: Mapping[str, Any]) -> Application:
    """Return the gateway with its replicas, for `serve run`; raises SettingsError.

    `arguments` are settings by the names of their flags, without the dashes in front; what they leave out is
    read from the environment, as always.
    """
    reading = read(_flags(arguments), os.environ)
    settings = reading.settings
    for warning in reading.warnings:
        logging.getLogger("parley").warning("%s", warning)
    connect(None)
    gateway = serve.deployment(
        serve.ingress()(GatewayIngress),
        name="Gateway",
        num_replicas=1,
        max_ongoing_requests=UNBOUNDED,
        graceful_shutdown_timeout_s=settings.graceful_termination_timeout + FAREWELL_SECONDS,
        ray_actor_options={"num_cpus": 0},
        logging_config=QUIET,
    )
    return gateway.bind(replicas(settings, shares.share(settings, nodes())), replace(settings, hf_token=None))


class GatewayIngress:
    """The gateway behind Ray Serve's proxies."""

    def __init__(self, handle: DeploymentHandle, settings: Settings) -> None:
        """`handle` is the replicas'."""
        configure(settings)
        last_resorts.install()
        self._fleet, self._settings = RayFleet(handle), settings

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return what Ray Serve calls."""
        return without_id(stack(Gateway(self._settings, self._fleet), self._settings, _nothing))


def without_id(app: ASGIApp) -> ASGIApp:
    """Return an application that leaves the header x-request-id to Ray Serve's proxies, which add it."""

    async def serve_without(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_without(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [pair for pair in message["headers"] if pair[0] != b"x-request-id"]
                message = {**message, "headers": headers}
            await send(message)

        await app(scope, receive, send_without)

    return serve_without


@asynccontextmanager
async def _nothing(application: object) -> Any:
    """Begin and end without anything to do."""
    yield


def _flags(arguments: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    named = {name.lstrip("-"): setting for setting in SETTINGS for name in setting.names}
    flags: dict[str, list[tuple[str, str]]] = {}
    for name, value in arguments.items():
        setting = named.get(name.replace("_", "-"))
        if setting is None:
            raise SettingsError(
                f"there is no setting {name!r}: they are named as flags of `parley serve` are"
            )
        values = value if isinstance(value, list) else [value]
        told = [str(each).lower() if isinstance(each, bool) else str(each) for each in values]
        flags.setdefault(setting.attribute, []).extend((name, each) for each in told)
    return flags
