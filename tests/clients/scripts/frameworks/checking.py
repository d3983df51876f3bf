"""A check, the line that tells of it, and the guard that lets frameworks call nobody but the server."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

LOOPBACK = ("127.0.0.1", "::1", "localhost", None, "")
TOLERATED = ("huggingface.co",)  # where LiteLLM looks for its huggingface/ model; it does without
LONGEST_MESSAGE = 600
OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it is downloaded at the import
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "OPENAI_API_KEY": "-",  # asked for by constructors, though the server needs none
    "NO_PROXY": "127.0.0.1",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that users of a package do; `run` gets the server's address and raises if it went wrong."""

    package: str
    mode: str  # whose API it speaks: openai, anthropic or tgi
    run: Callable[[str], None]


def checks(package: str, mode: str, *functions: Callable[[str], None]) -> tuple[Check, ...]:
    """Return the functions as checks of a package."""
    return tuple(Check(package, mode, function) for function in functions)


def report(check: Check, url: str) -> bool:
    """Run a check and print its line; tell whether it went well."""
    failure = None
    try:
        with contextlib.redirect_stdout(sys.stderr):  # frameworks talk
            check.run(url)
    except Exception as error:
        failed_line = traceback.extract_tb(error.__traceback__)[-1].line
        failure = " ".join(f"{type(error).__name__}: {error} in: {failed_line}".split())[:LONGEST_MESSAGE]
    outcome = "ok" if failure is None else f"FAILED {failure}"
    released = version(check.package)
    print(f"{check.package:<34} {released:<9} {check.mode:<7} {check.run.__name__:<36} {outcome}", flush=True)
    return failure is None


def raised(kind: type[Exception], function: Callable[[], Any]) -> Any:
    """Return the error of a kind that calling the function raises; raise AssertionError if it raises none."""
    try:
        function()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


@dataclass(slots=True)
class Guard:
    """An audit hook that refuses connections that leave this machine, and remembers the untolerated ones."""

    refused: list[str] = field(default_factory=list)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo":
            host = arguments[0]
        elif event == "socket.connect" and isinstance(arguments[1], tuple):
            host = arguments[1][0]
        else:
            return
        if host in LOOPBACK:
            return
        if host not in TOLERATED:
            self.refused.append(f"{host}")
        raise PermissionError(f"{host} isn't the server under test")


def stay_offline() -> None:
    """Turn off what frameworks send home, and their warnings about each other."""
    os.environ.update(OFFLINE)
    warnings.simplefilter("ignore")
