"""Ask the server of this container whether it can generate; the image's HEALTHCHECK.

Its port is the one that the server was started with: this reads the same arguments and variables.
"""

from __future__ import annotations

import argparse
import http.client
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from handlers.settings_reading import add_arguments, read
from handlers.settings_table import SettingsError

LINE = Path("/proc/1/cmdline")  # of the container's first process
SECONDS = 8  # less than what Docker waits


def main(line: Sequence[str]) -> int:
    """Return 0 if `GET /health` answers 200, else 1 and say why."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    add_arguments(parser)
    known, _ = parser.parse_known_args(line)  # the others are the interpreter's and the program's own
    try:
        settings = read(vars(known), os.environ).settings
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.hostname, settings.hostname)
    connection = http.client.HTTPConnection(host, settings.port, timeout=SECONDS)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except OSError as error:
        print(f"{host}:{settings.port}: {error}", file=sys.stderr)
        return 1
    if status != 200:
        print(f"GET /health answers {status}", file=sys.stderr)
    return int(status != 200)


if __name__ == "__main__":
    sys.exit(main(LINE.read_bytes().decode(errors="replace").split("\0")[1:-1]))
