"""Ask the server of this container whether it can generate; the image's HEALTHCHECK.

Its address is the one that the server was started with: this reads the same arguments and variables. The
container's first process need not be the server: `docker run --init` puts one before it, and so may a shell.
"""

from __future__ import annotations

import argparse
import http.client
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from handlers.settings.reading import add_arguments, read
from handlers.settings.row import SettingsError
from handlers.settings.table import SETTINGS, Settings

PROCESSES = Path("/proc")
PROGRAMS = ("text-generation-launcher", "parley")
MODULE = ["-m", "handlers"]
INTERPRETERS = ("python", "pypy")  # with whatever version behind it
OTHER_COMMANDS = ("check", "download-weights", "print-schema", "env")
SHARD = "shard"  # `parley shard` has no port
SECONDS = 8  # less than what Docker waits


@dataclass(frozen=True, slots=True)
class Server:
    """What a server was started with."""

    line: Sequence[str] = ()  # behind the program's name
    environment: Mapping[str, str] = field(default_factory=dict)


def main(server: Server) -> int:
    """Return 0 if `GET /health` answers 200, or it is a shard, of which nobody asks; else 1 and say why."""
    if server.line[:1] == [SHARD]:
        return 0
    try:
        settings = address_of(server)
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


def address_of(server: Server) -> Settings:
    """Return settings of which only the address counts; raises SettingsError.

    The others are left out: a file of keys that is broken by now is no fault of the server that runs.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    add_arguments(parser)
    known, _ = parser.parse_known_args(server.line)
    address = [setting for setting in SETTINGS if setting.attribute in ("hostname", "port")]
    flags = {each.attribute: vars(known).get(each.attribute, ()) for each in address}
    names = {name for each in address for name in each.variables} & server.environment.keys()
    return read(flags, {name: server.environment[name] for name in names}).settings


def find_server(processes: Path, environment: Mapping[str, str]) -> Server:
    """Return the server among all processes, by the names that it has; without any, one with the defaults.

    A program that starts it and stays, as `docker-init -- parley`, counts where there is nothing else.
    `environment` is the container's, for a process whose own can't be read.
    """
    started: Server | None = None
    for folder in sorted((each for each in processes.iterdir() if each.name.isdecimal()), key=_number):
        words = _strings(folder / "cmdline")
        own = _own_arguments(words)
        behind = own if own is not None else _arguments_behind(words)
        if behind is None or behind[:1] in [[command] for command in OTHER_COMMANDS]:
            continue
        told = dict(each.split("=", 1) for each in _strings(folder / "environ") if "=" in each)
        found = Server(behind, told or environment)
        if own is not None:
            return found
        started = started or found
    return started or Server((), environment)


def _own_arguments(words: Sequence[str]) -> list[str] | None:
    """Return what stands behind the program's name, if this is a process of the program itself."""
    if words and _base(words[0]) in PROGRAMS:
        return [*words[1:]]
    if not words or not _base(words[0]).startswith(INTERPRETERS):
        return None
    options = 1
    while options < len(words) and words[options].startswith("-") and words[options] not in ("-m", "-c"):
        options += 2 if words[options] in ("-X", "-W") else 1
    if [*words[options : options + 2]] == MODULE:
        return [*words[options + 2 :]]
    if options < len(words) and _base(words[options]) in PROGRAMS:
        return [*words[options + 1 :]]
    return None


def _arguments_behind(words: Sequence[str]) -> list[str] | None:
    """Return what a program that starts others, as an init, was told to start, if that is ours."""
    return _own_arguments(words[words.index("--") + 1 :]) if "--" in words else None


def _strings(file: Path) -> list[str]:
    """Return the strings of one of a process's files; none if it has ended, or is somebody else's."""
    try:
        raw = file.read_bytes()
    except OSError:
        return []
    return raw.decode(errors="surrogateescape").split("\0")[:-1]


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _number(folder: Path) -> int:
    return int(folder.name)


if __name__ == "__main__":
    sys.exit(main(find_server(PROCESSES, os.environ)))
