"""The flags of `python -m codegen fuzz`, apart from it: reading them needs no schemathesis."""

from __future__ import annotations

import argparse

CASES = 20_000
SEED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--cases", type=int, default=CASES, help=f"how many, in all ({CASES})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"the same cases for the same seed ({SEED})")
    parser.add_argument("--url", help="a server that runs; without it one of the embedded model is started")
    parser.add_argument("--key", help="the key of that server, if it has one")
    parser.add_argument("--only", nargs="+", metavar="OPERATION", help="ask these; no page is written")
