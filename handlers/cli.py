"""The command line: `parley`, and `text-generation-launcher` for deployments that start TGI.

Only what the parsing needs is imported here; each command imports its own, so that help answers at once.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from handlers.settings.reading import Reading, add_arguments, flag_names, nearest, read, switch_names
from handlers.settings.row import SettingsError, boolean

COMMANDS = {
    "serve": "serve the model over HTTP; also what flags without a command do",
    "shard": "be a share of a model that another machine serves with --remote-shards",
    "check": "load the settings and the model, print what they come to, and end",
    "download-weights": "fetch a model's files into the hub's cache",
    "print-schema": "print the OpenAPI document as JSON",
    "env": "print the runtime environment and the settings that differ from their defaults",
}
WITHOUT_SETTINGS = ("print-schema",)
EPILOGUE = "Every flag can also be set by an environment variable: docs/settings.md lists them."
FAILED, MISUSED = 1, 2  # exit codes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `parley`; returns the exit code."""
    _open_standard_streams()
    line = list(sys.argv[1:] if arguments is None else arguments)
    if not line or line[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if not line[0].startswith("-") and line[0] not in COMMANDS:
        return _misuse(f"there is no command {line[0]!r}{nearest(line[0], list(COMMANDS))}")
    command, flags = ("serve", line) if line[0].startswith("-") else (line[0], line[1:])
    return _run(f"parley {command}", command, flags)


def launcher(arguments: Sequence[str] | None = None) -> int:
    """Run `text-generation-launcher`, which is `parley serve` with TGI's `--env` and `--version`."""
    _open_standard_streams()
    line = list(sys.argv[1:] if arguments is None else arguments)
    flags = [flag for flag in line if flag not in ("-e", "--env")]
    asks_version = bool({"-V", "--version"} & set(line))
    if len(flags) < len(line) and not asks_version:  # TGI tells its environment, and goes on
        status = _run("text-generation-launcher", "env", flags)
        if status:
            return status
    return _run("text-generation-launcher", "serve", flags)


def _open_standard_streams() -> None:
    """Have standard streams lead nowhere that whoever starts this has closed: a socket would be one."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # the lowest that is free is the one that is opened
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends


def _run(program: str, command: str, flags: Sequence[str]) -> int:
    parser = _parser(program, command)
    try:
        if command == "download-weights":
            flags = with_lone_switches(flags)
        known, unknown = parser.parse_known_args(flags)
        values = vars(known)
        if values.pop("version"):
            return _print_version()
        if unknown:
            return _misuse(_unknown(unknown[0]))
        target = values.pop("model", None)
        if target is not None:
            values["model_id"] = [*values.get("model_id", ()), ("MODEL", target)]
        serving = command not in ("download-weights", "shard")
        reading = None if command in WITHOUT_SETTINGS else read(values, os.environ, serving=serving)
    except SettingsError as error:
        return _misuse(str(error))
    try:
        return _dispatch(command, reading)
    except BrokenPipeError:  # the reader has seen enough: `parley print-schema | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def with_lone_switches(line: Sequence[str]) -> list[str]:
    """Return a line on which a switch takes no word that is no value of it: that is the MODEL."""
    told = [*line]
    for at, (flag, word) in enumerate(itertools.pairwise(line)):
        if flag in switch_names() and not word.startswith("-") and not _is_boolean(word):
            told[at] = f"{flag}=true"
    return told


def _is_boolean(word: str) -> bool:
    try:
        boolean(word)
    except ValueError:
        return False
    return True


def _dispatch(command: str, reading: Reading | None) -> int:
    from handlers import commands

    if reading is None:
        return commands.print_schema()
    if command == "serve":
        from handlers.serving.serve import serve

        return serve(reading)
    if command == "shard":
        from handlers.serving.shard import shard

        return shard(reading)
    if command == "check":
        return commands.check(reading)
    if command == "download-weights":
        return commands.download_weights(reading)
    return commands.environment(reading)


def _unknown(word: str) -> str:
    """Return what to say of a word of the command line that nothing takes."""
    name = word.partition("=")[0]  # what stands behind it may be a secret
    if not name.startswith("-"):
        return f"{name} stands behind no flag: a model is named by --model-id"
    return f"there is no flag {name}{nearest(name, [*flag_names(), '--help', '--version'])}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Refuse in one line: the usage of seventy flags would hide it."""
        raise SettingsError(f"{message}; see {self.prog} --help")


def _parser(program: str, command: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=program,
        usage=f"{program} [flags]",
        description=COMMANDS[command][:1].upper() + COMMANDS[command][1:] + ".",
        epilog=EPILOGUE,
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="store_true", help="show the version and exit")
    if command == "download-weights":
        parser.usage = f"{program} [MODEL] [flags]"
        parser.add_argument("model", nargs="?", metavar="MODEL", help="the same as --model-id")
    if command not in WITHOUT_SETTINGS:
        add_arguments(parser)
    return parser


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {about}" for name, about in COMMANDS.items()]
    return "\n".join(
        [
            "usage: parley COMMAND [flags]",
            "",
            "A text generation server: TGI's and OpenAI's APIs, by one OpenAPI document.",
            "",
            "commands:",
            *lines,
            "",
            "parley COMMAND --help lists a command's flags. " + EPILOGUE,
        ]
    )


def _print_version() -> int:
    from handlers.version import version

    print(f"parley {version()}")
    return 0


def _misuse(message: str) -> int:
    print(f"parley: {message}", file=sys.stderr)
    return MISUSED
