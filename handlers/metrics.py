"""The metrics of openapi/metrics.yaml: collected, and shown with exactly the names written there."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from handlers.buckets import Histograms
from handlers.http.replies import text_reply
from inference.types import Finish, ModelInfo, Request, StepStats
from openapi.yamlload import parse

if TYPE_CHECKING:
    from starlette.responses import Response

    from handlers.http.call import Call
    from handlers.service import Service

Row = dict[str, Any]  # of metrics.yaml
Kind = type[Counter | Gauge | Summary]
WITHOUT_BUCKETS: dict[str, Kind] = {"counter": Counter, "gauge": Gauge, "summary": Summary}


async def metrics(service: Service, call: Call) -> Response:
    """Show every metric as Prometheus text."""
    return text_reply(service.metrics.render())


@cache
def table() -> dict[str, Any]:
    """Return metrics.yaml: `buckets` and `metrics`."""
    text = files("openapi").joinpath("metrics.yaml").read_text(encoding="utf-8")
    contract: dict[str, Any] = parse(text)
    return contract


class Metrics:
    """Counts what the HTTP side and the engine tell it, on the event loop; `render` may run in any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._model: ModelInfo | None = None
        self._metrics: dict[str, Any] = {}  # by name
        self._series: dict[tuple[str, str], Any] = {}  # by name and label's value, made in advance
        for row in table()["metrics"]:
            if not _needs_model(row):
                self._create(row, None)

    def bind(self, model: ModelInfo) -> None:
        """Take the limits of the loaded model, for buckets and the KV cache's size; once."""
        if self._model is not None:
            raise RuntimeError("the metrics are bound to a model already")
        self._model = model
        for row in table()["metrics"]:
            if _needs_model(row):
                self._create(row, model)
        self._metrics["tgi_batch_max_total_tokens"].set(model.max_batch_total_tokens)

    def count_request(self) -> None:
        """Count a request received."""
        self._metrics["tgi_request_count"].inc()

    def failure(self, err: str) -> None:
        """Count a request refused or failed; raises KeyError for an `err` that metrics.yaml doesn't name."""
        self._series["tgi_request_failure", err].inc()

    def finished(self, finish: Finish, request: Request) -> None:
        """Record one generation that ended with its last token."""
        times, generated = finish.timings, finish.generated_tokens
        inference = times.finished - times.started
        self._metrics["tgi_request_success"].inc()
        self._observe("tgi_request_duration", times.finished - times.submitted)
        self._observe("tgi_request_validation_duration", times.queued - times.submitted)
        self._observe("tgi_request_queue_duration", times.started - times.queued)
        self._observe("tgi_request_inference_duration", inference)
        self._observe("tgi_request_mean_time_per_token_duration", inference / max(generated, 1))
        self._observe("tgi_request_input_length", finish.prompt_tokens)
        self._observe("tgi_request_generated_tokens", generated)
        self._observe("tgi_request_max_new_tokens", self._allowed(finish, request))

    def on_step(self, step: StepStats) -> None:
        """Record one step of the engine."""
        method = "prefill" if step.prefill_tokens else "decode"
        self._series["tgi_batch_inference_count", method].inc()
        self._series["tgi_batch_inference_success", method].inc()
        forward, sample = step.forward_seconds, step.sample_seconds
        self._series["tgi_batch_inference_duration", method].observe(forward + sample)
        self._series["tgi_batch_forward_duration", method].observe(forward)
        self._series["tgi_batch_decode_duration", method].observe(sample)
        if step.admitted:
            self._observe("tgi_batch_next_size", step.admitted)
        if step.admitted and step.decode_sequences:
            self._series["tgi_batch_concat", "chunking"].inc()
        self._metrics["tgi_queue_size"].set(step.waiting)
        self._metrics["tgi_batch_current_size"].set(step.running)
        self._metrics["tgi_batch_current_max_tokens"].set(step.kv_tokens)

    def render(self) -> bytes:
        """Return the Prometheus text, in the order of metrics.yaml."""
        families = {family.name: family for family in self._registry.collect()}
        lines: list[str] = []
        for row in table()["metrics"]:
            lines += [f"# HELP {row['name']} {row['meaning']}", f"# TYPE {row['name']} {row['type']}"]
            if row["name"] in families:
                lines += _samples(families[row["name"]])
        return ("\n".join(lines) + "\n").encode()

    def _create(self, row: Row, model: ModelInfo | None) -> None:
        if row["type"] == "gauge" and row["fed"] is not True:
            return  # a gauge at zero would say something
        labels: dict[str, list[str]] = row.get("labels", {})
        metric: Any
        if row["type"] == "histogram":
            metric = Histograms(row["name"], row["meaning"], _bounds(row["buckets"], model), tuple(labels))
            self._registry.register(metric)
        else:
            about = (row["name"], row["meaning"], tuple(labels))
            metric = WITHOUT_BUCKETS[row["type"]](*about, registry=self._registry)
        for values in labels.values():
            for value in values:
                self._series[row["name"], value] = metric.labels(value)
        alone = row["type"] == "histogram" and not labels
        self._metrics[row["name"]] = metric.labels() if alone else metric

    def _observe(self, name: str, value: float) -> None:
        self._metrics[name].observe(value)

    def _allowed(self, finish: Finish, request: Request) -> int:
        """Return how many tokens could be generated."""
        assert self._model is not None
        room = self._model.max_total_tokens - finish.prompt_tokens
        return room if request.max_new_tokens is None else min(request.max_new_tokens, room)


def _needs_model(row: Row) -> bool:
    return "buckets" in row and "share_of" in table()["buckets"][row["buckets"]]


def _bounds(name: str, model: ModelInfo | None) -> Sequence[float]:
    """Return the upper bounds of a set of buckets."""
    rule = table()["buckets"][name]
    count: int = rule["count"]
    if "factor" in rule:
        # multiplied step by step, so that the bounds are TGI's to the last digit
        factors = [rule["first"], *[rule["factor"]] * count]
        return list(itertools.accumulate(factors, operator.mul))[1:]
    if "share_of" in rule:
        limit: int = getattr(model, rule["share_of"])
        return [limit / count * step for step in range(1, count + 1)]
    return [float(rule["step"] * step) for step in range(1, count + 1)]


def _samples(family: Metric) -> Iterator[str]:
    for sample in family.samples:
        if sample.name.endswith("_created"):  # the library's own; TGI has no such series
            continue
        # the library adds _total to a counter's name
        name = family.name if family.type == "counter" else sample.name
        yield f"{name}{_labels(sample)} {_number(sample.value)}"


def _labels(sample: Sample) -> str:
    values = {key: _bound(value) if key == "le" else value for key, value in sample.labels.items()}
    pairs = ",".join(f'{key}="{value}"' for key, value in values.items())
    return f"{{{pairs}}}" if pairs else ""


@cache
def _bound(value: str) -> str:
    return value if value == "+Inf" else _number(float(value))


def _number(value: float) -> str:
    """Return the shortest text; a whole number without a point, as TGI writes it."""
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
