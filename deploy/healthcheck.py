"""Ask the server of this container whether it can generate; the image's HEALTHCHECK.

Its port is the one that the server was started with: this reads the same arguments and variables. The
container's first process need not be the server: `docker run --init` puts one before it, and so may a shell.
"""

from __future__ import annotations

import argparse
import http.client
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from handlers.settings_reading import add_arguments, read
from handlers.settings_table import SettingsError

PROCESSES = Path("/proc")
PROGRAMS = ("text-generation-launcher", "parley")
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


def command_lines(processes: Path) -> list[list[str]]:
    """Return the command lines of all processes, the first one's first."""
    found = []
    for folder in sorted((each for each in processes.iterdir() if each.name.isdecimal()), key=_number):
        try:
            raw = (folder / "cmdline").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        found.append(raw.decode(errors="replace").split("\0")[:-1])
    return found


def server_arguments(lines: Iterable[Sequence[str]]) -> Sequence[str]:
    """Return what the server was started with; what the first process was, if none is known by its name."""
    every = [*lines]
    for line in every:
        for at, word in enumerate(line):
            if word.rpartition("/")[2] in PROGRAMS:
                return line[at + 1 :]
    return every[0][1:] if every else ()


def _number(folder: Path) -> int:
    return int(folder.name)


if __name__ == "__main__":
    sys.exit(main(server_arguments(command_lines(PROCESSES))))
