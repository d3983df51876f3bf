"""What the log has of a request that failed."""

from __future__ import annotations

import pytest

from inference.failures import STOPPED, STOPPED_BEFORE, blamed, log_failure
from inference.sequences.faults import explain
from inference.types import CoreFailure

BLAMED = "The engine failed on request a#1.2; others are not affected (KeyError: the server's log says more)"


@pytest.mark.parametrize(
    "message",
    [STOPPED, STOPPED_BEFORE, BLAMED, explain("a", KeyError("quote")), explain("a", OSError(), alone=False)],
)
def test_words_of_ours_are_logged(message: str, caplog: pytest.LogCaptureFixture) -> None:
    log_failure(CoreFailure("a#1.2", message))
    (told,) = caplog.records
    assert (told.getMessage(), told.exc_info) == (f"request a#1.2 failed: {message}", None)


@pytest.mark.parametrize(
    ("message", "own"),
    [
        (BLAMED, True),
        (f"{BLAMED} quote", False),
        ("The request could not be queued: 'quote'", False),
        (blamed("a", "quote quote", alone=True), False),
        ("", False),
    ],
)
def test_words_that_may_be_a_clients_are_those_of_an_exception(
    message: str, own: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log_failure(CoreFailure("a", message, own))
    (told,) = caplog.records
    assert told.getMessage() == "request a failed"
    assert told.exc_info
    assert str(told.exc_info[1]) == message
