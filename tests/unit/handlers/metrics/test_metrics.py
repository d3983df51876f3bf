"""Metrics: TGI's names, labels and buckets exactly and a few of our own, fed by what happened."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from handlers.metrics.metrics import Metrics
from handlers.metrics.table import table
from inference.step_stats import Obstacle, StepStats
from inference.types import Finish, FinishReason, ModelInfo, Request, Timings

# beside the checkout, or where the variable says: TGI's own Grafana board
REFERENCE = Path(os.environ.get("PARLEY_TEST_REFERENCE", Path(__file__).parents[5] / "shared" / "reference"))
BOARD = REFERENCE / "corpora" / "tgi_grafana.json"
TGIS_FAILURES = ("validation", "overloaded", "generation", "incomplete", "dropped", "template")
MODEL = ModelInfo(
    id="m",
    sha=None,
    pipeline_tag=None,
    dtype="torch.float32",
    device_type="cpu",
    max_input_tokens=150,
    max_total_tokens=200,
    max_batch_prefill_tokens=64,
    max_batch_total_tokens=6400,
    level="paged",
    eos_token_ids=(0,),
    vocabulary_size=8,
)
STEP = StepStats(
    prefill_tokens=0,
    decode_sequences=0,
    admitted=0,
    cached_tokens=0,
    forward_seconds=0.25,
    sample_seconds=0.125,
    waiting=0,
    running=0,
    kv_tokens=0,
    preempted=0,
)
FINISH = Finish(
    reason=FinishReason.LENGTH,
    text="",
    text_before_stop="",
    prompt_tokens=30,
    generated_tokens=4,
    cached_tokens=0,
    seed=None,
    timings=Timings(submitted=100.0, queued=100.25, started=101.0, first_token=101.5, finished=103.0),
)


@pytest.fixture
def metrics() -> Metrics:
    bound = Metrics()
    bound.bind(MODEL)
    return bound


def families(metrics: Metrics) -> dict[str, Metric]:
    """Read the exposition as Prometheus would; the library's reader renames counters, which is undone."""
    read = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
    for family in read.values():
        if family.type == "counter":
            family.samples = [sample._replace(name=family.name) for sample in family.samples]
    return read


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """Return the one sample of that name and those labels."""
    samples = [sample for family in families(metrics).values() for sample in family.samples]
    (found,) = [sample.value for sample in samples if sample.name == name and sample.labels == labels]
    return found


# name: type, labels; TGI 3.3's, independently of metrics.yaml
EXPECTED: dict[str, tuple[str, dict[str, list[str]]]] = {
    "tgi_request_count": ("counter", {}),
    "tgi_request_success": ("counter", {}),
    "tgi_request_failure": (
        "counter",
        {"err": [*TGIS_FAILURES, "rate_limited"]},
    ),
    "tgi_request_duration": ("histogram", {}),
    "tgi_request_validation_duration": ("histogram", {}),
    "tgi_request_queue_duration": ("histogram", {}),
    "tgi_request_inference_duration": ("histogram", {}),
    "tgi_request_mean_time_per_token_duration": ("histogram", {}),
    "tgi_request_input_length": ("histogram", {}),
    "tgi_request_max_new_tokens": ("histogram", {}),
    "tgi_request_generated_tokens": ("histogram", {}),
    "tgi_request_skipped_tokens": ("summary", {}),
    "tgi_batch_inference_count": ("counter", {"method": ["prefill", "decode"]}),
    "tgi_batch_inference_success": ("counter", {"method": ["prefill", "decode"]}),
    "tgi_batch_inference_failure": ("counter", {"method": ["prefill", "decode"]}),
    "tgi_batch_inference_duration": ("histogram", {"method": ["prefill", "decode"]}),
    "tgi_batch_forward_duration": ("histogram", {"method": ["prefill", "decode"]}),
    "tgi_batch_decode_duration": ("histogram", {"method": ["prefill", "decode"]}),
    "tgi_batch_filter_duration": ("histogram", {"method": ["prefill", "decode"]}),
    "tgi_batch_concat_duration": ("histogram", {"method": ["decode"]}),
    "tgi_batch_concat": ("counter", {"reason": ["backpressure", "wait_exceeded", "chunking"]}),
    "tgi_batch_next_size": ("histogram", {}),
    "tgi_queue_size": ("gauge", {}),
    "tgi_batch_current_size": ("gauge", {}),
    "tgi_batch_current_max_tokens": ("gauge", {}),
    "tgi_batch_max_total_tokens": ("gauge", {}),
    "tgi_batch_total_tokens": ("gauge", {}),
}
OWN = {
    *("parley_engine_up", "parley_engine_restarts", "parley_model_info", "parley_queue_waiting"),
    *("parley_kv_cache_usage", "parley_computed_tokens", "parley_preemptions"),
    *("parley_step_retries", "parley_guessed_tokens"),
    *("parley_prefix_cache_query_tokens", "parley_prefix_cache_hit_tokens"),
    *("parley_request_first_token_duration", "parley_request_next_token_duration"),
    *("parley_http_requests", "parley_http_probes", "parley_http_failures", "parley_http_declined"),
    *("parley_http_faults", "parley_http_duration"),
    *("parley_worker_requests", "parley_worker_in_flight", "parley_worker_preparing"),
    "parley_worker_generating",
    "parley_log_dropped_lines",
}


def test_the_contract_lists_tgis_metrics_with_their_types_and_labels_and_ours() -> None:
    listed = {row["name"]: (row["type"], row.get("labels", {})) for row in table()["metrics"]}
    assert EXPECTED == {name: row for name, row in listed.items() if name not in OWN}
    assert OWN == {name for name in listed if name.startswith("parley_")}
    for row in table()["metrics"]:
        assert row["meaning"]
        assert row["unit"]
        assert row["fed"] is True or isinstance(row["fed"], str)


@pytest.mark.parametrize("name", EXPECTED)
def test_each_series_exists_before_anything_happened(metrics: Metrics, name: str) -> None:
    kind, labels = EXPECTED[name]
    family = families(metrics)[name]
    assert kind == family.type
    suffix = {"histogram": "_count", "summary": "_count"}.get(kind, "")
    wanted = [{label: each} for label, values in labels.items() for each in values] or [{}]
    if name != "tgi_batch_total_tokens":  # TGI never sets it
        assert wanted == [sample.labels for sample in family.samples if sample.name == name + suffix]


def test_names_have_no_suffix_that_prometheus_clients_add(metrics: Metrics) -> None:
    text = metrics.render().decode()
    assert not re.search(r"_created|_total[ {]", text)


@pytest.mark.parametrize(
    ("name", "first", "last", "count"),
    [
        ("tgi_request_duration", 0.00015, 145.611, 35),
        ("tgi_batch_inference_duration", 0.00015, 145.611, 35),
        ("tgi_request_input_length", 1.5, 150.0, 100),
        ("tgi_request_max_new_tokens", 2.0, 200.0, 100),
        ("tgi_request_generated_tokens", 2.0, 200.0, 100),
        ("tgi_batch_next_size", 1.0, 1024.0, 1024),
    ],
)
def test_bucket_bounds(metrics: Metrics, name: str, first: float, last: float, count: int) -> None:
    samples = families(metrics)[name].samples
    bounds = [sample.labels["le"] for sample in samples if sample.name.endswith("_bucket")]
    bounds = bounds[: bounds.index("+Inf")]
    assert count == len(bounds)
    assert pytest.approx(first) == float(bounds[0])
    assert pytest.approx(last) == float(bounds[-1])


def test_every_metric_of_tgis_dashboard_is_there(metrics: Metrics) -> None:
    if not BOARD.is_file():
        pytest.skip(f"TGI's dashboard is not at {BOARD}")
    expressions = re.findall(r'"expr": "(.*)"', BOARD.read_text())
    asked = set(re.findall(r"tgi_[a-z_]+", " ".join(expressions)))
    assert 15 < len(asked)
    shown = {sample.name for family in families(metrics).values() for sample in family.samples}
    # TGI 3 shows a summary there, without buckets, and its own board finds none either
    assert {"tgi_request_skipped_tokens_bucket"} == asked - shown


def test_a_finished_generation_is_observed_in_seconds_and_tokens(metrics: Metrics) -> None:
    metrics.count_request()
    metrics.finished(FINISH, Request(id="r", prompt="p", max_new_tokens=7))
    expected = {
        "tgi_request_count": 1,
        "tgi_request_success": 1,
        "tgi_request_duration_sum": 3.0,
        "tgi_request_validation_duration_sum": 0.25,
        "tgi_request_queue_duration_sum": 0.75,
        "tgi_request_inference_duration_sum": 2.0,
        "tgi_request_mean_time_per_token_duration_sum": 0.5,
        "tgi_request_input_length_sum": 30,
        "tgi_request_generated_tokens_sum": 4,
        "tgi_request_max_new_tokens_sum": 7,
        "tgi_request_skipped_tokens_count": 0,
    }
    assert expected == {name: value(metrics, name) for name in expected}


@pytest.mark.parametrize(("asked", "allowed"), [(None, 170), (170, 170), (500, 170), (1, 1)])
def test_max_new_tokens_is_what_the_context_allows(metrics: Metrics, asked: int | None, allowed: int) -> None:
    metrics.finished(FINISH, Request(id="r", prompt="p", max_new_tokens=asked))
    assert allowed == value(metrics, "tgi_request_max_new_tokens_sum")


def test_failures_are_counted_under_known_names_only(metrics: Metrics) -> None:
    metrics.failure("overloaded")
    assert 1 == value(metrics, "tgi_request_failure", err="overloaded")
    assert 0 == value(metrics, "tgi_request_failure", err="validation")
    with pytest.raises(KeyError):
        metrics.failure("surprise")


@pytest.mark.parametrize(("prefill_tokens", "method"), [(0, "decode"), (5, "prefill")])
def test_a_step_counts_under_its_method(metrics: Metrics, prefill_tokens: int, method: str) -> None:
    metrics.on_step(replace(STEP, prefill_tokens=prefill_tokens))
    expected = {
        "tgi_batch_inference_count": 1,
        "tgi_batch_inference_success": 1,
        "tgi_batch_inference_failure": 0,
        "tgi_batch_inference_duration_sum": 0.375,
        "tgi_batch_forward_duration_sum": 0.25,
        "tgi_batch_decode_duration_sum": 0.125,
    }
    assert expected == {name: value(metrics, name, method=method) for name in expected}


def test_gauges_follow_the_last_step(metrics: Metrics) -> None:
    metrics.on_step(replace(STEP, waiting=3, running=2, kv_tokens=99))
    names = ("tgi_queue_size", "tgi_batch_current_size", "tgi_batch_current_max_tokens")
    assert [3, 2, 99] == [value(metrics, name) for name in names]
    metrics.on_step(STEP)
    assert [0, 0, 0] == [value(metrics, name) for name in names]
    assert 6400 == value(metrics, "tgi_batch_max_total_tokens")


def test_what_the_prefix_cache_saved_and_who_gave_way_add_up(metrics: Metrics) -> None:
    metrics.on_step(replace(STEP, prefill_tokens=9, cached_tokens=32, preempted=1))
    metrics.on_step(replace(STEP, prefill_tokens=5, preempted=2))
    expected = {
        "parley_prefix_cache_query_tokens": 46,
        "parley_prefix_cache_hit_tokens": 32,
        "parley_preemptions": 3,
    }
    assert expected == {name: value(metrics, name) for name in expected}


def test_admission_beside_running_requests_is_a_concat(metrics: Metrics) -> None:
    metrics.on_step(replace(STEP, admitted=2, prefill_tokens=9))
    assert 0 == value(metrics, "tgi_batch_concat", reason="chunking")
    metrics.on_step(replace(STEP, admitted=3, prefill_tokens=9, decode_sequences=1))
    assert 1 == value(metrics, "tgi_batch_concat", reason="chunking")
    assert 5 == value(metrics, "tgi_batch_next_size_sum")
    assert 2 == value(metrics, "tgi_batch_next_size_count")


def test_a_model_is_bound_once(metrics: Metrics) -> None:
    with pytest.raises(RuntimeError, match="already"):
        metrics.bind(MODEL)


def test_while_the_model_loads_everything_else_is_shown() -> None:
    shown = families(Metrics())
    assert EXPECTED.keys() | OWN == shown.keys()
    assert [] == shown["tgi_request_input_length"].samples
    assert [] == shown["parley_model_info"].samples
    assert 0 == value(Metrics(), "parley_engine_up")


def test_what_clients_wait_for_is_observed_apart(metrics: Metrics) -> None:
    metrics.finished(FINISH, Request(id="r", prompt="p"))
    single = replace(FINISH, generated_tokens=1)
    metrics.finished(single, Request(id="s", prompt="p"))
    expected = {
        "parley_request_first_token_duration_sum": 3.0,
        "parley_request_first_token_duration_count": 2,
        # three tokens after the first, in the second and a half after it; one token has none after it
        "parley_request_next_token_duration_sum": 0.5,
        "parley_request_next_token_duration_count": 1,
    }
    assert expected == {name: value(metrics, name) for name in expected}


@pytest.mark.parametrize("obstacle", Obstacle)
def test_requests_wait_for_a_reason(metrics: Metrics, obstacle: Obstacle) -> None:
    metrics.on_step(replace(STEP, waiting=5, obstacle=obstacle, waiting_prefix=2))
    reasons = ("sequences", "budget", "memory", "prefix")
    found = {reason: value(metrics, "parley_queue_waiting", reason=reason) for reason in reasons}
    assert found == dict.fromkeys(reasons, 0.0) | {obstacle.value: 3, "prefix": 2}
    assert sum(found.values()) == value(metrics, "tgi_queue_size")


def test_steps_tell_tokens_and_how_full_the_cache_is(metrics: Metrics) -> None:
    metrics.on_step(replace(STEP, prefill_tokens=9, decode_sequences=3, kv_tokens=1600))
    metrics.on_step(replace(STEP, decode_sequences=4, kv_tokens=6400, held_tokens=3200))
    assert 9 == value(metrics, "parley_computed_tokens", kind="prompt")
    assert 7 == value(metrics, "parley_computed_tokens", kind="generated")
    assert 0.5 == value(metrics, "parley_kv_cache_usage")


def test_a_step_that_failed_took_no_time_and_had_no_success(metrics: Metrics) -> None:
    metrics.on_step(replace(STEP, prefill_tokens=9, forward_seconds=0.0, sample_seconds=0.0, failed=True))
    expected = {
        "tgi_batch_inference_count": 1,
        "tgi_batch_inference_success": 0,
        "tgi_batch_inference_failure": 1,
        "tgi_batch_inference_duration_count": 0,
    }
    assert expected == {name: value(metrics, name, method="prefill") for name in expected}


def test_parts_of_a_failed_step_that_are_computed_again_are_counted(metrics: Metrics) -> None:
    for step in (STEP, replace(STEP, failed=True), replace(STEP, failed=True, again=True)):
        metrics.on_step(step)
    assert 1 == value(metrics, "parley_step_retries")


def test_an_engine_at_rest_is_no_step(metrics: Metrics) -> None:
    metrics.on_step(replace(STEP, waiting=3, running=2))
    metrics.on_step(replace(STEP, forward_seconds=0.0, sample_seconds=0.0))
    assert 1 == value(metrics, "tgi_batch_inference_count", method="decode")
    assert 0 == value(metrics, "tgi_batch_current_size")


def test_the_model_is_named_whatever_its_name_is_made_of() -> None:
    metrics = Metrics()
    metrics.bind(replace(MODEL, id='C:\\models\\"new"\nmodel', sha=None))
    (sample,) = families(metrics)["parley_model_info"].samples
    assert 1 == sample.value
    assert 'C:\\models\\"new"\nmodel' == sample.labels["model_id"]
    assert {"model_sha", "dtype", "device_type", "level", "version"} < sample.labels.keys()
