"""`python -m codegen <command>`: the tools of the contract."""

from __future__ import annotations

import argparse
import sys

from codegen.document import Document
from codegen.lint import lint


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 if there is nothing to mend."""
    parser = argparse.ArgumentParser(prog="codegen", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("lint", help="check openapi.yaml against the contract's rules")
    parser.parse_args(arguments)
    return run_lint()


def run_lint() -> int:
    """Print what breaks a rule."""
    problems = lint(Document.load())
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems" if problems else "openapi.yaml keeps all rules")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
