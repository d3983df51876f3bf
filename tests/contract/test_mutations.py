"""Defects are planted one by one, and a generated test, or the gate on breaking changes, catches each."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import pytest

from codegen.baseline import Contract
from codegen.breaking import judge
from tests.contract.properties import cases
from tests.contract.properties.mutant import Mutant
from tests.contract.properties.mutants import MUTANTS
from tests.contract.properties.target import Kept, Target, application, in_process
from tests.once import read_documents_once

FEWEST = 65
PROCESSES = 2
PATIENCE = 900  # seconds: the first test that asks for a verdict waits for all of them
CAUGHT = "caught"
MISSED = "MISSED"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(PATIENCE)]
NOTHING_ANNOUNCED = "# History\n\n## Not released yet\n"
Removal = Callable[[Any, Any, Any], object]  # of the document, the metrics and the settings

REMOVALS: dict[str, Removal] = {
    "an operation": lambda document, *_: document["paths"].pop("/ping"),
    "a member of a request": lambda document, *_: members(document, "ChatRequest").pop("seed"),
    "a member of an answer": lambda document, *_: members(document, "Usage").pop("total_tokens"),
    "a status": lambda document, *_: document["paths"]["/generate"]["post"]["responses"].pop("429"),
    "values of a request": lambda document, *_: members(document, "GenerateParameters")["top_k"].update(
        maximum=10
    ),
    "freedom to leave a member out": lambda document, *_: schema(document, "GenerateRequest")[
        "required"
    ].append("parameters"),
    "a metric": lambda _, metrics, settings: metrics["metrics"].pop(),
    "a setting": lambda _, metrics, settings: settings.pop(next(iter(settings))),
}


@pytest.fixture(scope="module")
def verdicts() -> dict[str, str]:
    """Tell of each mutant whether its test fails, or what else went wrong."""
    with ProcessPoolExecutor(PROCESSES, get_context("spawn"), initializer=prepare) as pool:
        return dict(zip(map(str, MUTANTS), pool.map(verdict_at, range(len(MUTANTS))), strict=True))


def prepare() -> None:
    """Read the contract once, and have nothing logged: each defect would be told as often as it is met."""
    read_documents_once()
    logging.getLogger("parley").setLevel(logging.CRITICAL)


def verdict_at(place: int) -> str:
    """Return the verdict on a mutant, in another process: what is patched can't be sent there."""
    return verdict(MUTANTS[place])


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_defect_is_caught(mutant: Mutant, verdicts: dict[str, str]) -> None:
    assert verdicts[str(mutant)] == CAUGHT


def test_a_test_that_breaks_has_caught_nothing() -> None:
    def plant(patch: pytest.MonkeyPatch) -> None:
        raise LookupError("there is nothing to patch")

    assert verdict(Mutant("broken", "ping", "it_is_open_to_all", plant)) == (
        "LookupError: there is nothing to patch"
    )


def test_a_test_that_passes_has_missed_the_defect() -> None:
    assert verdict(Mutant("none", "ping", "it_is_open_to_all", lambda patch: None)) == MISSED


def test_without_a_defect_the_same_tests_pass() -> None:
    """Each of one operation; that they do of all is what the generated modules show, asking such a server."""
    one_each = dict(sorted((mutant.test, mutant.operation) for mutant in MUTANTS))
    with served() as target:
        for test, operation in one_each.items():
            check(operation, test)(target)


@pytest.mark.parametrize("removed", REMOVALS)
def test_what_is_taken_away_unannounced_is_caught(removed: str) -> None:
    old = Contract.today()
    new = replace(
        old,
        document=deepcopy(old.document),
        metrics=deepcopy(old.metrics),
        settings=deepcopy(old.settings),
    )
    REMOVALS[removed](new.document, new.metrics, new.settings)
    assert judge(old, old, NOTHING_ANNOUNCED, str(old.version)).problems == []
    assert judge(old, new, NOTHING_ANNOUNCED, str(old.version)).unannounced


def test_no_defect_is_missed(verdicts: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print("".join(f"\n{told}  {name}" for name, told in verdicts.items()))
        print(f"{list(verdicts.values()).count(CAUGHT)} of {len(verdicts)} defects are caught")
    assert {name: told for name, told in verdicts.items() if told != CAUGHT} == {}
    assert len(verdicts) >= FEWEST


def test_no_two_defects_have_the_same_name() -> None:
    names = [str(mutant) for mutant in MUTANTS]
    assert sorted(set(names)) == sorted(names)


def verdict(mutant: Mutant) -> str:
    """Return CAUGHT if the mutant's test fails, MISSED if it passes, else the error that it ends with."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            patch.setattr(cases, "KINDS_OF_FAILURES", 1)  # more of them tell nothing new
            with served() as target:
                check(mutant.operation, mutant.test)(target)
    except AssertionError:
        return CAUGHT
    except Exception as error:  # told with the mutant's name, and not equal to CAUGHT
        return f"{type(error).__name__}: {error}"
    return MISSED


def check(operation: str, test: str) -> Callable[[Target], None]:
    """Return a function of a generated module."""
    module = importlib.import_module(f"tests.contract.generated.test_{operation}")
    function: Callable[[Target], None] = getattr(module, f"test_{test}")
    return function


@contextmanager
def served() -> Iterator[Target]:
    """Give the application as it is now."""
    app = Kept(application())
    try:
        yield in_process(app)
    finally:
        app.close()


def schema(document: Any, name: str) -> Any:
    """Return a component schema."""
    return document["components"]["schemas"][name]


def members(document: Any, name: str) -> Any:
    """Return a component schema's members."""
    return schema(document, name)["properties"]
