"""What is counted of steps in which tokens were guessed ahead, and of engines that die and come back."""

from dataclasses import replace

from handlers.metrics.metrics import Metrics
from inference.core import Life
from tests.unit.handlers.metrics.test_metrics import MODEL, STEP, value


def bound() -> Metrics:
    """Return metrics of a model that is loaded."""
    metrics = Metrics()
    metrics.bind(MODEL)
    return metrics


def test_guessed_tokens_count_by_whether_they_followed() -> None:
    metrics = bound()
    metrics.on_step(replace(STEP, decode_sequences=3, guessed=6, confirmed=4))
    metrics.on_step(replace(STEP, decode_sequences=2))
    metrics.on_step(replace(STEP, decode_sequences=2, guessed=2, failed=True))
    assert 4 == value(metrics, "parley_guessed_tokens", outcome="accepted")
    assert 2 == value(metrics, "parley_guessed_tokens", outcome="rejected")
    assert 11 == value(metrics, "parley_computed_tokens", kind="generated")
    # as in TGI: what each text got beyond a token, each time that it got one
    assert 5 == value(metrics, "tgi_request_skipped_tokens_count")
    assert 4 == value(metrics, "tgi_request_skipped_tokens_sum")


def test_an_engine_that_dies_leaves_nothing_waiting_and_counts_once_it_is_back() -> None:
    metrics = bound()
    gauges = ("tgi_queue_size", "tgi_batch_current_size", "tgi_batch_current_max_tokens")
    metrics.on_step(replace(STEP, waiting=3, running=2, kv_tokens=99))
    assert 1 == value(metrics, "parley_engine_up")
    metrics.on_life(Life.DOWN, None)
    assert (0, 0) == (value(metrics, "parley_engine_up"), value(metrics, "parley_engine_restarts"))
    assert [0, 0, 0] == [value(metrics, name) for name in gauges]
    assert 0 == value(metrics, "parley_queue_waiting", reason="budget")
    metrics.on_life(Life.UP, MODEL)
    assert (1, 1) == (value(metrics, "parley_engine_up"), value(metrics, "parley_engine_restarts"))
    metrics.on_life(Life.GONE, None)
    assert (0, 1) == (value(metrics, "parley_engine_up"), value(metrics, "parley_engine_restarts"))


def test_the_cache_is_that_of_the_engine_that_runs() -> None:
    metrics = bound()
    metrics.on_life(Life.DOWN, None)
    smaller = MODEL.max_batch_total_tokens // 4
    metrics.on_life(Life.UP, replace(MODEL, max_batch_total_tokens=smaller))
    metrics.on_step(replace(STEP, held_tokens=smaller))
    assert (smaller, 1) == (
        value(metrics, "tgi_batch_max_total_tokens"),
        value(metrics, "parley_kv_cache_usage"),
    )
