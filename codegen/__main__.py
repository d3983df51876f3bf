"""`python -m codegen <command>`: the tools of the contract."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from codegen import baseline, breaking, compat_rows, compat_table, families, fuzz_options, outputs, references
from codegen.announcements import AnnouncementError
from codegen.compat import compare
from codegen.document import Document
from codegen.lint import lint
from codegen.support import tables

REFERENCES = Path(__file__).parents[1] / "../shared/reference/specs"


def main(arguments: list[str] | None = None) -> int:
    """Run one command, or write what is generated, or run every check; 0 if there is nothing to mend."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.all_checks:
        return run_checks()
    if options.command is None:
        return run_write(options)
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


def run_checks() -> int:
    """Run whatever finds that files have drifted apart; 1 if there is something to mend."""
    return max([main(check) for check in (["lint"], ["outputs", "--check"], ["breaking"], ["compat"])])


def run_lint(options: argparse.Namespace) -> int:
    """Print what breaks a rule."""
    problems = lint(Document.load())
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems" if problems else "openapi.yaml keeps all rules")
    return 1 if problems else 0


def run_compat(options: argparse.Namespace) -> int:
    """Print how the contract differs from the documents that clients were made from.

    Without the documents only the table of differences is held against the contract.
    """
    document, folder = Document.load(), options.references
    if not (folder or REFERENCES).is_dir():
        print(f"there are no documents at {folder or REFERENCES}: name their directory with --references")
        return 2 if folder or options.write else _told(compat_table.untrue(document, compat_table.read()))
    found = compat_rows.rows(document, references.read(folder or REFERENCES))
    if options.write:
        compat_table.write(compat_table.with_reasons(found, compat_table.read()))
    kept = compat_table.read()
    problems = [*compat_table.disagreements(found, kept), *compat_table.untrue(document, kept)]
    return max(_told(problems), _compared(document, folder or REFERENCES))


def _told(problems: Iterable[str]) -> int:
    """Print what isn't true in openapi/compatibility/; 1 if there is something."""
    lines = [f"openapi/compatibility: {problem}" for problem in problems]
    print("\n".join(lines or ["openapi/compatibility is true of the contract"]))
    return 1 if lines else 0


def _compared(document: Document, folder: Path) -> int:
    """Print which samples of the documents' bodies contradict ours; 1 if one isn't explained."""
    report = compare(document, folder)
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


def run_write(options: argparse.Namespace) -> int:
    """Write what is generated from the contract, or with --check say which files are out of date."""
    if getattr(options, "check", False):
        stale = outputs.check()
        print("\n".join(stale or ["every generated file is what the contract says"]))
        return 1 if stale else 0
    for path in outputs.write():
        print(f"wrote {path.relative_to(outputs.ROOT)}" if path.exists() else f"removed {path.name}")
    return 0


def run_breaking(options: argparse.Namespace) -> int:
    """Print what changed since the last release, and the version that it needs; 1 if that isn't told."""
    try:
        verdict = breaking.judge_today(options.against)
    except (AnnouncementError, FileNotFoundError) as error:
        print(f"openapi/CHANGES.md: {error}" if isinstance(error, AnnouncementError) else error)
        return 1
    print("\n".join(map(str, verdict.changes)) or f"nothing changed since {verdict.old}")
    print(f"{verdict.old} was released, this is {verdict.new}, the changes need {verdict.needed} or higher")
    print("\n".join(verdict.problems) or "every breaking change is announced")
    return 1 if verdict.problems else 0


def run_release(options: argparse.Namespace) -> int:
    """Make today's contract the one that the next one is held against."""
    make = breaking.release_again if options.again else breaking.release
    obstacles = make(options.version, baseline.FOLDER)
    print("\n".join(obstacles) or f"openapi/baseline is {options.version}'s contract")
    return 1 if obstacles else 0


def run_families(options: argparse.Namespace) -> int:
    """Measure how families of models are served, and write docs/models.md."""
    families.write(options.only)
    return 0


def run_fuzz(options: argparse.Namespace) -> int:
    """Hold a running server against the contract, and write docs/fuzz.md."""
    from codegen import fuzz  # nothing else needs schemathesis

    return fuzz.run(options)


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
    compat.add_argument("--references", type=Path, help="their directory")
    compat.add_argument("--write", action="store_true", help="write openapi/compatibility")
    compat.set_defaults(command=run_compat)
    generated = commands.add_parser("outputs", help="write every generated file, as no command does")
    generated.add_argument("--check", action="store_true", help="write nothing; exit with 1 if one is stale")
    generated.set_defaults(command=run_write)
    gate = commands.add_parser("breaking", help="hold the contract against the last release's")
    gate.add_argument("--against", type=Path, default=baseline.FOLDER, help="the folder that keeps that")
    gate.set_defaults(command=run_breaking)
    releasing = commands.add_parser("release", help="keep today's contract as the released one")
    releasing.add_argument("version", help="as openapi.yaml and pyproject.toml have it")
    releasing.add_argument("--again", action="store_true", help="a kept one that nobody has got yet")
    releasing.set_defaults(command=run_release)
    measured = commands.add_parser(
        "families", help="serve a toy of every family that transformers has, and write docs/models.md"
    )
    measured.add_argument(
        "--only", nargs="+", default=(), metavar="FAMILY", help="measure these, keep the other rows"
    )
    measured.set_defaults(command=run_families)
    fuzzing = commands.add_parser("fuzz", help="ask a server thousands of times, and write docs/fuzz.md")
    fuzz_options.add_arguments(fuzzing)
    fuzzing.set_defaults(command=run_fuzz)
    support = commands.add_parser("support", help="list what becomes of each member of each request")
    support.set_defaults(command=run_support)
    return parser


if __name__ == "__main__":
    sys.exit(main())
