"""The pages for users: what they name exists, what they quote the server says, and the README has all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from handlers import cli
from handlers.metrics.table import table
from handlers.settings.reading import flag_names
from handlers.settings.row import Support
from handlers.settings.table import SETTINGS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAMES = ("migrating", "clients", "choosing", "performance", "troubleshooting")
PAGES = {name: (DOCS / f"{name}.md").read_text(encoding="utf-8") for name in NAMES}
SOURCES = [path for package in ("handlers", "inference") for path in sorted((ROOT / package).rglob("*.py"))]
DOCKERS = {"--entrypoint", "--gpus", "--rm", "--shm-size", "--target"}
OTHERS_FLAGS = re.compile(
    r"^\| [^|]* (?=\|)", re.MULTILINE
)  # the first column where other servers are told of
COMMAND = re.compile(r"`python -m [^`]*`")  # has flags of its own
CONTINUED = re.compile(r'"\s*f?"')  # where a text of the source goes on in the next line


def own(name: str) -> str:
    """Return a page without the flags that aren't Parley's."""
    page = COMMAND.sub("", PAGES[name])
    if name != "migrating":
        return page
    before, found, after = page.partition("\n## From vLLM\n")
    assert found
    return before + OTHERS_FLAGS.sub("", after)


def slug(title: str) -> str:
    """Return the anchor that a heading has on the hub of repositories."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def plain(text: str) -> str:
    """Return a text in one line, with `...` for what varies."""
    return " ".join(re.sub(r"\{[^{}\n\"]*\}", "...", text).split())


def around_members(message: str) -> list[str]:
    """Return how the sources have a message that members of a request stand in."""
    parts = re.split(r"`(\w+)`", message)
    return [f'Member("{part}"' if at % 2 else part.strip() for at, part in enumerate(parts)]


@pytest.fixture(scope="module")
def sources() -> str:
    """Return what the server's modules can say."""
    return plain(" ".join(CONTINUED.sub("", path.read_text(encoding="utf-8")) for path in SOURCES))


@pytest.mark.parametrize("name", NAMES)
def test_links_and_anchors_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", PAGES[name]):
        path, _, anchor = target.partition("#")
        text = (DOCS / path).read_text(encoding="utf-8") if path else PAGES[name]
        assert not anchor or anchor in map(slug, re.findall(r"^#+ (.+)$", text, re.MULTILINE)), target


@pytest.mark.parametrize("name", NAMES)
def test_flags_commands_and_variables_exist(name: str) -> None:
    known = {*flag_names(), *DOCKERS, "--help"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", own(name))) - known == set()
    assert set(re.findall(r"`parley ([a-z][a-z-]+)", PAGES[name])) - {*cli.COMMANDS} == set()
    variables = {variable for setting in SETTINGS for variable in setting.variables}
    assert set(re.findall(r"(?<!_)\bPARLEY_[A-Z_]*[A-Z]\b", PAGES[name])) - variables == set()


@pytest.mark.parametrize("name", NAMES)
def test_metrics_and_files_exist(name: str) -> None:
    metrics = {row["name"] for row in table()["metrics"]}
    assert set(re.findall(r"`((?:tgi|parley)_[a-z_]+)`", PAGES[name])) - metrics == set()
    paths = re.findall(r"`((?:deploy|tests)/[\w./-]+)`", PAGES[name])
    assert [] == [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.parametrize("quoted", re.findall(r"``(.+?)``", PAGES["troubleshooting"]))
def test_messages_are_the_servers_own(quoted: str, sources: str) -> None:
    for piece in (piece.strip() for piece in plain(quoted).split("...")):
        prefix, _, rest = piece.partition(": ")  # is put before what was raised, which is told elsewhere
        told = piece in sources or (f"{prefix}: " in sources and rest in sources)
        assert told or all(part in sources for part in around_members(piece)), piece


def test_there_are_as_many_symptoms_as_a_page_needs() -> None:
    rows = re.findall(r"^\| (?!what|status|---)", PAGES["troubleshooting"], re.MULTILINE)
    assert len(rows) > 30


def test_every_setting_of_tgis_without_effect_is_told_to_who_comes_from_it() -> None:
    (row,) = re.findall(r"^\| (.*) \| taken, without effect;", PAGES["migrating"], re.MULTILINE)
    accepted = {
        (setting.names or setting.variables)[0] for setting in SETTINGS if setting.support is Support.ACCEPTED
    }
    assert accepted == set(re.findall(r"`([\w-]+)`", row))


def test_every_setting_that_ends_the_start_is_told_to_who_comes_from_it() -> None:
    (row,) = re.findall(r"^\| (.*) \| end the start, with what to do", PAGES["migrating"], re.MULTILINE)
    refused = {setting.names[0] for setting in SETTINGS if setting.support is Support.LATER}
    assert refused == set(re.findall(r"`([\w-]+)`", row))


def test_what_choosing_says_of_number_types_was_measured() -> None:
    measured = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+) \| ([\d.]+ / [\d. /]+) \| ([\d. /]+) \|$", PAGES["choosing"], re.MULTILINE)
    assert len(rows) == 3
    for machine, rounded, int8 in rows:
        _, found, section = measured.partition(f"# On another machine: {machine}\n")
        assert found
        rates = {
            server: [float(rate) for rate in re.findall(r"\| ([\d.]+) \(", line)]
            for server, line in re.findall(r"^\| (parley [^|]+) \| .*? (\|.*)$", section, re.MULTILINE)[3::-1]
        }
        base = rates["parley bf16"]
        for told, server in ((rounded, "parley bf16 --dtype bfloat16"), (int8, "parley int8")):
            ratios = [mine / usual for mine, usual in zip(rates[server], base, strict=True)]
            assert told == " / ".join(f"{ratio:.1f}" for ratio in ratios)


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [] == [path.name for path in sorted(DOCS.glob("*.md")) if f"docs/{path.name}" not in readme]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130
