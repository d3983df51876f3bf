"""`text-generation-server`: of TGI's second program, what images and init containers call."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from handlers import cli

PROGRAM = "text-generation-server"
ELSEWHERE = {
    "serve": "there is no server of a shard: text-generation-launcher serves the model, all of it",
    "quantize": "weights aren't quantised ahead: text-generation-launcher --quantize int8 does it",
}
SWITCHED_OFF = {f"--no-{name}": f"--{name}=false" for name in ("json-output", "trust-remote-code")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `text-generation-server download-weights`, which is Parley's; returns the exit code.

    Of TGI's own options those that ask for something else are refused, or told to have no effect.
    """
    line = list(sys.argv[1:] if arguments is None else arguments)
    if not line or line[0] in ("-h", "--help"):
        print(f"usage: {PROGRAM} download-weights MODEL [flags]")
        return 0
    if line[0] in ELSEWHERE:
        return _misuse(ELSEWHERE[line[0]])
    if line[0] != "download-weights":
        return _misuse(f"there is no command {line[0]!r}: there is download-weights")
    own, rest = _own_options().parse_known_args(line[1:])
    if own.extension != ".safetensors":
        return _misuse(
            f"--extension must be .safetensors, not {own.extension}: other weights aren't downloaded"
        )
    if own.merge_lora:
        return _misuse("--merge-lora isn't supported: --lora-adapters serves adapters beside the model")
    for warning in _without_effect(own):
        print(f"{PROGRAM}: {warning}", file=sys.stderr)
    return cli.main(["download-weights", *(SWITCHED_OFF.get(word, word) for word in rest)])


def _own_options() -> argparse.ArgumentParser:
    """Return a parser of the options that only TGI's command has; `parley` knows the others."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--extension", default=".safetensors")
    parser.add_argument("--merge-lora", action=argparse.BooleanOptionalAction)
    parser.add_argument("--auto-convert", action=argparse.BooleanOptionalAction)
    parser.add_argument("--logger-level")
    return parser


def _without_effect(own: argparse.Namespace) -> Iterator[str]:
    """Yield what is to be told of options that ask for something which isn't done."""
    if own.auto_convert:
        yield "--auto-convert has no effect: weights in other forms aren't converted"
    if own.logger_level is not None:
        yield "--logger-level has no effect: what is done is printed, and nothing else"


def _misuse(message: str) -> int:
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    return cli.MISUSED
