"""The cluster that holds the replicas: connected to, or begun on this machine, and left in the end."""

from __future__ import annotations

import logging
import socket
import threading
from dataclasses import replace

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from handlers.fleet import deployments, shares
from handlers.fleet.connection import connect, nodes
from handlers.settings.table import Settings
from inference.errors import ModelUnavailable

LEAVE_SECONDS = 20.0  # that the replicas may take to end, of which none has anything to do

logger = logging.getLogger("parley")


def name_of(settings: Settings) -> str:
    """Return what a server's replicas are called in the cluster.

    One that was killed left them there: its successor finds them by this name, and replaces them.
    """
    return f"parley-{socket.gethostname()}-{settings.port}"


class Cluster:
    """What one process has a cluster do; for any of its threads."""

    def __init__(self) -> None:
        self._changing = threading.Lock()  # held while the connection is made or ended
        self._left = False  # nothing is placed any more
        self._gone = False  # and nothing of Ray's is left in this process
        self._placed = ""  # the application's name

    def place(self, settings: Settings) -> DeploymentHandle:
        """Have the cluster hold the replicas, and return how they are reached once all of them serve.

        It is the cluster of RAY_ADDRESS, or one that is begun here and ends with this process. Raises
        ModelUnavailable if the replicas can't serve.
        """
        with self._changing:
            if self._left:
                raise ModelUnavailable("The server ends")
            connect("local")
            serve.start(proxy_location="Disabled", logging_config=deployments.QUIET)
        share = shares.share(settings, nodes())
        logger.info("Plan: %d replicas, each with %s", settings.replicas, share)
        application = deployments.replicas(replace(settings, json_output=True), share)  # for `lines`
        self._placed = name_of(settings)
        try:
            handle = serve.run(application, name=name_of(settings), route_prefix=None)
        except RuntimeError as error:
            raise ModelUnavailable(f"The replicas can't serve: {error}") from error
        return handle

    def leave(self) -> bool:
        """End the replicas, and the cluster if it was begun here; return whether that came to its end.

        Ray waits a minute for a cluster that answers no more, and then ends this process with an error.
        That is so where all processes are told to end at once, as by systemd: those of Ray itself end first.
        """
        leaving = threading.Thread(target=self._leave, name="leaving", daemon=True)
        leaving.start()
        leaving.join(LEAVE_SECONDS)
        if leaving.is_alive():
            reason = f"the cluster hasn't answered within {LEAVE_SECONDS:g} s"
            logger.warning("The replicas may not have ended: %s", reason)
        return self._gone

    def _leave(self) -> None:
        with self._changing:
            self._left = True
            if ray.is_initialized():
                try:
                    if self._placed:
                        serve.delete(self._placed)
                except Exception as error:  # of Ray's: the cluster may be gone
                    logger.warning("The replicas may not have ended: %s", type(error).__name__)
                ray.shutdown()
            self._gone = True
