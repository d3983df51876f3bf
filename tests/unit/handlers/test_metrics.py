"""Metrics: TGI's names, labels and buckets exactly and a few of our own, fed by what happened."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from handlers.board import Board
from handlers.metric_table import table, width
from handlers.metrics import Metrics
from inference.shared import SharedMemory
from inference.types import Finish, FinishReason, ModelInfo, Request, StepStats, Timings

# beside the checkout, or where the variable says: TGI's own Grafana board
REFERENCE = Path(os.environ.get("PARLEY_TEST_REFERENCE", Path(__file__).parents[4] / "shared" / "reference"))
BOARD = REFERENCE / "corpora" / "tgi_grafana.json"

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
    timings=Timings(submitted=100.0, queued=100.25, started=101.0, finished=103.0),
)


@pytest.fixture
def metrics() -> Metrics:
    """Return metrics of a loaded model."""
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
        {"err": ["validation", "overloaded", "generation", "incomplete", "dropped", "template"]},
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
    # ours
    "parley_prefix_cache_query_tokens": ("counter", {}),
    "parley_prefix_cache_hit_tokens": ("counter", {}),
    "parley_preemptions": ("counter", {}),
}


def test_the_contract_lists_tgis_metrics_and_ours_with_their_types_and_labels() -> None:
    listed = {row["name"]: (row["type"], row.get("labels", {})) for row in table()["metrics"]}
    assert EXPECTED == listed
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
    assert not re.search(r"_created|_total[ {]|_info", text.replace("tgi_batch_max_total_tokens", ""))


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


def test_each_of_several_processes_shows_what_all_of_them_counted() -> None:
    memory = SharedMemory.create(Board.size(3, width()))
    first, second, engines = (Metrics(Board.of(memory, 3), row) for row in range(3))
    for one in (first, second, engines):
        one.bind(MODEL)
    first.count_request()
    first.finished(FINISH, Request(id="r", prompt="p"))
    second.finished(FINISH, Request(id="s", prompt="p"))
    second.failure("dropped")
    engines.on_step(replace(STEP, waiting=3, running=2, kv_tokens=99, admitted=2))
    expected = {
        "tgi_request_count": 1,
        "tgi_request_success": 2,
        "tgi_request_duration_sum": 6.0,
        "tgi_request_duration_count": 2,
        "tgi_batch_next_size_sum": 2,
        # gauges of the engine, which all of them see
        "tgi_queue_size": 3,
        "tgi_batch_current_size": 2,
        "tgi_batch_current_max_tokens": 99,
        "tgi_batch_max_total_tokens": 6400,
    }
    for one in (first, second, engines):
        assert expected == {name: value(one, name) for name in expected}
        assert 1 == value(one, "tgi_request_failure", err="dropped")
        assert 2 == value(one, "tgi_request_input_length_bucket", le="30")


def test_whoever_takes_the_place_of_another_process_goes_on_counting() -> None:
    memory = SharedMemory.create(Board.size(2, width()))
    Metrics(Board.of(memory, 2), 1).count_request()
    successor = Metrics(Board.of(memory, 2), 1)
    successor.count_request()
    assert 2 == value(successor, "tgi_request_count")


def test_a_model_is_bound_once(metrics: Metrics) -> None:
    with pytest.raises(RuntimeError, match="already"):
        metrics.bind(MODEL)


def test_while_the_model_loads_everything_else_is_shown() -> None:
    shown = families(Metrics())
    assert EXPECTED.keys() == shown.keys()
    assert [] == shown["tgi_request_input_length"].samples
