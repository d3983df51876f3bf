"""The environment in which Ray is imported, and which a cluster that it starts here inherits.

What is set already counts. Of a cluster that somebody else started, docs/deploy.md says the same.
"""

from __future__ import annotations

import os

VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
    "RAY_worker_niceness": "0",  # else 15: behind whatever else the machine does
    # fewer threads, and no task of Ray's, on a request's way: it takes 3 to 4 ms more, and not 9
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    # else 4 MiB, and a larger body counts as a lost replica: how large one may be, the payload limits say
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1),
    "RAY_DEDUP_LOGS": "0",  # no line is dropped because it looks like another
    "RAY_ROTATION_MAX_BYTES": str(16 * 2**20),  # of each file that Ray keeps of what a process prints
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_COLOR_PREFIX": "0",  # `handlers.fleet.lines` reads it
}


def prepare_ray() -> None:
    """Set what isn't set."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
