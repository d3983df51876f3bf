"""The metrics of openapi/metrics.yaml: counted, and shown with exactly the names written there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from handlers.board import Board
from handlers.buckets import Histogram, cumulated
from handlers.http.replies import TextReply, text_reply
from handlers.metric_table import Series, bounds, layout, table, width
from inference.types import Finish, ModelInfo, Request, StepStats

if TYPE_CHECKING:

    from handlers.http.call import Call
    from handlers.service import Service

_FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "summary": SummaryMetricFamily,
    "histogram": HistogramMetricFamily,
}


async def metrics(service: Service, call: Call[None]) -> TextReply:
    """Show every metric as Prometheus text."""
    return text_reply(service.metrics.render())


class Metrics(Collector):
    """Counts what the HTTP side and the engine tell it, on the event loop; `render` may run in any thread.

    Several processes count in rows of one board, and each shows the sums. What is told of the engine's steps
    is told to one of them only.
    """

    def __init__(self, board: Board | None = None, row: int = 0) -> None:
        """`row` is this process's own; without a board there are no others."""
        self._board = Board.own(width()) if board is None else board
        self._numbers = self._board.row(row)
        self._at: dict[str, int] = {}  # where a counter or gauge without a label stands
        self._labelled: dict[tuple[str, str], int] = {}  # the same by name and label's value
        self._histograms: dict[str | tuple[str, str], Histogram] = {}
        self._shown_bounds: dict[str, list[str]] = {}
        self._model: ModelInfo | None = None
        for series in _all_series():
            self._add(series)
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def bind(self, model: ModelInfo) -> None:
        """Take the limits of the loaded model, for buckets and the KV cache's size; once."""
        if self._model is not None:
            raise RuntimeError("the metrics are bound to a model already")
        self._model = model
        for series in _all_series():
            if series.needs_model:
                self._add(series)
        self._set("tgi_batch_max_total_tokens", model.max_batch_total_tokens)

    def count_request(self) -> None:
        """Count a request received."""
        self._increase("tgi_request_count")

    def failure(self, err: str) -> None:
        """Count a request refused or failed; raises KeyError for an `err` that metrics.yaml doesn't name."""
        self._numbers[self._labelled["tgi_request_failure", err]] += 1

    def finished(self, finish: Finish, request: Request) -> None:
        """Record one generation that ended with its last token."""
        times, generated = finish.timings, finish.generated_tokens
        inference = times.finished - times.started
        self._increase("tgi_request_success")
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
        self._numbers[self._labelled["tgi_batch_inference_count", method]] += 1
        self._numbers[self._labelled["tgi_batch_inference_success", method]] += 1
        forward, sample = step.forward_seconds, step.sample_seconds
        self._histograms["tgi_batch_inference_duration", method].observe(forward + sample)
        self._histograms["tgi_batch_forward_duration", method].observe(forward)
        self._histograms["tgi_batch_decode_duration", method].observe(sample)
        if step.admitted:
            self._observe("tgi_batch_next_size", step.admitted)
        if step.admitted and step.decode_sequences:
            self._numbers[self._labelled["tgi_batch_concat", "chunking"]] += 1
        self._set("tgi_queue_size", step.waiting)
        self._set("tgi_batch_current_size", step.running)
        self._set("tgi_batch_current_max_tokens", step.kv_tokens)
        self._increase("parley_prefix_cache_query_tokens", step.prefill_tokens + step.cached_tokens)
        self._increase("parley_prefix_cache_hit_tokens", step.cached_tokens)
        self._increase("parley_preemptions", step.preempted)

    def collect(self) -> Iterator[Metric]:
        """Yield what the registry shows: the sums over all processes."""
        for row in table()["metrics"]:
            if row["type"] == "gauge" and row["fed"] is not True:
                continue  # a gauge at zero would say something
            yield self._family(row)

    def render(self) -> bytes:
        """Return the Prometheus text, in the order of metrics.yaml."""
        families = {family.name: family for family in self.registry.collect()}
        lines: list[str] = []
        for row in table()["metrics"]:
            lines += [f"# HELP {row['name']} {row['meaning']}", f"# TYPE {row['name']} {row['type']}"]
            if row["name"] in families:
                # the library adds _total to a counter's name, TGI's counters have none
                suffix = "_total" if row["type"] == "counter" else ""
                lines += [_line(sample, suffix) for sample in families[row["name"]].samples]
        return ("\n".join(lines) + "\n").encode()

    def _add(self, series: Series) -> None:
        """Make a series ready to be counted; what needs the model isn't before it is bound."""
        if series.buckets is None:
            if series.label is None:
                self._at[series.name] = series.start
            else:
                self._labelled[series.name, series.label[1]] = series.start
        elif self._model is not None or not series.needs_model:
            key = series.name if series.label is None else (series.name, series.label[1])
            numbers = self._numbers[series.start : series.stop]
            self._histograms[key] = Histogram(bounds(series.buckets, self._model), numbers)

    def _increase(self, name: str, by: float = 1) -> None:
        self._numbers[self._at[name]] += by

    def _set(self, name: str, value: float) -> None:
        self._numbers[self._at[name]] = value

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    def _family(self, row: Mapping[str, Any]) -> Metric:
        names = tuple(row.get("labels", ()))
        family = _FAMILIES[row["type"]](row["name"], row["meaning"], labels=names)
        for series in layout()[row["name"]]:
            label = () if series.label is None else series.label[1:]
            if self._model is not None or not series.needs_model:
                family.add_metric(label, **self._values(series))
        return family

    def _values(self, series: Series) -> dict[str, Any]:
        """Return a series' numbers as its family takes them."""
        if series.kind == "gauge":  # of the engine: summing over processes would count it twice
            return {"value": self._board.highest(series.start)}
        sums = self._board.sums(series.start, series.stop)
        if series.kind == "counter":
            return {"value": sums[0]}
        if series.kind == "summary":
            return {"count_value": sums[0], "sum_value": sums[1]}
        below = cumulated(sums[:-1])
        return {"buckets": list(zip(self._bounds(series), below, strict=True)), "sum_value": sums[-1]}

    def _bounds(self, series: Series) -> list[str]:
        """Return the upper bounds of a histogram as they are shown; made once, as there are many."""
        assert series.buckets is not None
        if series.buckets not in self._shown_bounds:
            shown = [*map(_number, bounds(series.buckets, self._model)), "+Inf"]
            self._shown_bounds[series.buckets] = shown
        return self._shown_bounds[series.buckets]

    def _allowed(self, finish: Finish, request: Request) -> int:
        """Return how many tokens could be generated."""
        assert self._model is not None
        room = self._model.max_total_tokens - finish.prompt_tokens
        return room if request.max_new_tokens is None else min(request.max_new_tokens, room)


@cache
def _all_series() -> tuple[Series, ...]:
    return tuple(series for found in layout().values() for series in found)


def _line(sample: Sample, suffix: str) -> str:
    labels = ",".join(f'{key}="{text}"' for key, text in sample.labels.items())
    name = sample.name.removesuffix(suffix)
    return f"{name}{{{labels}}} {_number(sample.value)}" if labels else f"{name} {_number(sample.value)}"


def _number(value: float) -> str:
    """Return the shortest text; a whole number without a point, as TGI writes it."""
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
