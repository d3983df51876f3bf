"""`python -m codegen <command>`: the tools of the contract."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from codegen import families, reference_docs
from codegen.compat import compare
from codegen.document import Document
from codegen.lint import lint
from codegen.support import tables

REFERENCES = Path(__file__).parents[1] / "../shared/reference/specs"


def main(arguments: list[str] | None = None) -> int:
    """Run one command, or every check; 0 if there is nothing to mend."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.all_checks:
        return run_checks()
    if options.command is None:
        parser.error("name a command, or --check")
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


def run_checks() -> int:
    """Run whatever finds that files have drifted apart; 1 if there is something to mend."""
    checks = [["lint"], ["docs", "--check"], ["compat"]]
    if not REFERENCES.is_dir():
        print(f"without `compat`: there are no documents at {REFERENCES}")
        checks.remove(["compat"])
    return max([main(check) for check in checks])


def run_lint(options: argparse.Namespace) -> int:
    """Print what breaks a rule."""
    problems = lint(Document.load())
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems" if problems else "openapi.yaml keeps all rules")
    return 1 if problems else 0


def run_compat(options: argparse.Namespace) -> int:
    """Print how the contract differs from the documents that clients were made from."""
    if not options.references.is_dir():
        print(f"there are no documents at {options.references}: name their directory with --references")
        return 2
    report = compare(Document.load(), options.references)
    for contradiction, found in report.explained:
        print(f"meant: {contradiction}: {len(found)} found")
    for violation in report.unexplained:
        print(f"mend, or explain in openapi/compatibility.yaml: {violation}")
    for contradiction in report.idle:
        print(f"remove from openapi/compatibility.yaml, it is not there any more: {contradiction}")
    print(f"{len(report.unexplained)} unexplained, {len(report.idle)} no longer true")
    return 1 if report.unexplained or report.idle else 0


def run_support(options: argparse.Namespace) -> int:
    """Print what becomes of each member of each request."""
    print("\n".join(tables(Document.load())), end="")
    return 0


def run_docs(options: argparse.Namespace) -> int:
    """Write the pages of docs/, or say which ones are out of date."""
    if not options.check:
        reference_docs.write()
        return 0
    stale = reference_docs.check()
    print("\n".join(stale or ["docs/settings.md and docs/metrics.md are up to date"]))
    return 1 if stale else 0


def run_families(options: argparse.Namespace) -> int:
    """Measure how families of models are served, and write docs/models.md."""
    families.write(options.only)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m codegen", description=__doc__)
    parser.set_defaults(command=None)
    parser.add_argument("--check", action="store_true", dest="all_checks", help="run every check below")
    commands = parser.add_subparsers(metavar="command")
    linting = commands.add_parser("lint", help="check openapi.yaml against the contract's rules")
    linting.set_defaults(command=run_lint)
    compat = commands.add_parser(
        "compat", help="compare openapi.yaml with the documents clients were made from"
    )
    compat.add_argument("--references", type=Path, default=REFERENCES, help="their directory")
    compat.set_defaults(command=run_compat)
    docs = commands.add_parser("docs", help="write docs/settings.md and docs/metrics.md from their tables")
    docs.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    docs.set_defaults(command=run_docs)
    measured = commands.add_parser(
        "families", help="serve a toy of every family that transformers has, and write docs/models.md"
    )
    measured.add_argument(
        "--only", nargs="+", default=(), metavar="FAMILY", help="measure these, keep the other rows"
    )
    measured.set_defaults(command=run_families)
    support = commands.add_parser("support", help="list what becomes of each member of each request")
    support.set_defaults(command=run_support)
    return parser


if __name__ == "__main__":
    sys.exit(main())
