"""What is counted of steps in which tokens were guessed ahead."""

from dataclasses import replace

from handlers.metrics import Metrics
from tests.unit.handlers.test_metrics import MODEL, STEP, value


def test_guessed_tokens_count_by_whether_they_followed() -> None:
    metrics = Metrics()
    metrics.bind(MODEL)
    metrics.on_step(replace(STEP, decode_sequences=3, guessed=6, confirmed=4))
    metrics.on_step(replace(STEP, decode_sequences=2))
    metrics.on_step(replace(STEP, decode_sequences=2, guessed=2, failed=True))
    assert 4 == value(metrics, "parley_guessed_tokens", outcome="accepted")
    assert 2 == value(metrics, "parley_guessed_tokens", outcome="rejected")
    assert 11 == value(metrics, "parley_computed_tokens", kind="generated")
    # as in TGI: what each text got beyond a token, each time that it got one
    assert 5 == value(metrics, "tgi_request_skipped_tokens_count")
    assert 4 == value(metrics, "tgi_request_skipped_tokens_sum")
