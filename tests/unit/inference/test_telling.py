from __future__ import annotations

from typing import Any

import pytest

from inference.telling import counted, told

RAISING = "def fail(error): raise error\ndef look_up(): return {}['sliding']\n"


def raised(module: str, function: str, *given: Any) -> Exception:
    """Return what a function of a module raises."""
    names: dict[str, Any] = {"__name__": module}
    exec(RAISING, names)
    try:
        names[function](*given)
    except Exception as error:
        return error
    raise AssertionError("it raises")


@pytest.mark.parametrize("kind", [AssertionError, ValueError, TypeError])
def test_words_of_ours_are_told_alone(kind: type[Exception]) -> None:
    assert (
        told(raised("inference.models.paged", "fail", kind("it masks\n attention"))) == "it masks attention"
    )


@pytest.mark.parametrize(
    ("module", "function", "given", "said"),
    [
        ("transformers.modeling", "fail", [ValueError("no\nwindow")], "ValueError: no window"),
        ("inferences.other", "fail", [ValueError("x")], "ValueError: x"),
        ("inference.models.paged", "look_up", [], "KeyError: 'sliding'"),
        ("inference.models.paged", "fail", [IndexError("list index out of range")], "IndexError: list index"),
        ("inference.models.paged", "fail", [AssertionError()], "AssertionError"),
        ("inference.models.paged", "fail", [RuntimeError("sizes differ")], "RuntimeError: sizes"),  # torch's
    ],
)
def test_what_others_say_and_what_nobody_said_stands_behind_its_kind(
    module: str, function: str, given: list[Any], said: str
) -> None:
    assert told(raised(module, function, *given)).startswith(said)


def test_an_exception_that_nobody_raised_has_its_kind() -> None:
    assert told(ValueError("x")) == "ValueError: x"


@pytest.mark.parametrize(
    ("count", "said"), [(1, "1 head"), (0, "0 heads"), (2, "2 heads"), (1234, "1,234 heads")]
)
def test_one_of_something_is_in_the_singular(count: int, said: str) -> None:
    assert counted(count, "head") == said
