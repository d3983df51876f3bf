"""The embedded model answers questions that it was never trained on."""

from __future__ import annotations

import pytest

from codegen.embedded.corpus import held_out
from codegen.embedded.evaluate import SHIPPED, generate, scores

ASKED = 12  # of each kind
MARK = 0.85  # a little under the mark of the full evaluation, since so few questions scatter


@pytest.mark.slow
def test_held_out_questions_are_answered() -> None:
    questions = held_out(ASKED, seed=2)
    counted = scores(questions, generate(SHIPPED, questions))
    right = sum(right for right, _ in counted.values())
    assert right >= MARK * len(questions), counted
