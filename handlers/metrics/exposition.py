"""Every metric as a family of a registry, and as Prometheus text with exactly the names of metrics.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

from handlers.metrics.board import Board
from handlers.metrics.buckets import cumulated
from handlers.metrics.table import Series, bounds, label_names, layout, table

if TYPE_CHECKING:
    from inference.types import ModelInfo

_FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "summary": SummaryMetricFamily,
    "histogram": HistogramMetricFamily,
}
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Exposition(Collector):
    """Shows the numbers of a board: sums over all processes, and of what the engine tells the only ones."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._model: ModelInfo | None = None
        self._info: Mapping[str, str] = {}
        self._shown_bounds: dict[str, list[str]] = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def bind(self, model: ModelInfo, info: Mapping[str, str]) -> None:
        """Take the loaded model's limits, and what the labels that are `told` say."""
        self._model = model
        self._info = info

    def collect(self) -> Iterator[Metric]:
        """Yield what the registry shows."""
        for row in table()["metrics"]:
            if row["type"] == "gauge" and row["fed"] is not True:
                continue  # a gauge at zero would say something
            yield self._family(row)

    def render(self) -> bytes:
        """Return the text, in the order of metrics.yaml; may run in any thread."""
        families = {family.name: family for family in self.registry.collect()}
        lines: list[str] = []
        for row in table()["metrics"]:
            meaning = row["meaning"].replace("\\", r"\\").replace("\n", r"\n")
            lines += [f"# HELP {row['name']} {meaning}", f"# TYPE {row['name']} {row['type']}"]
            if row["name"] in families:
                # the library adds _total to a counter's name, TGI's counters have none
                suffix = "_total" if row["type"] == "counter" else ""
                lines += [_line(sample, suffix) for sample in families[row["name"]].samples]
        return ("\n".join(lines) + "\n").encode()

    def _family(self, row: Mapping[str, Any]) -> Metric:
        names = label_names(row)
        family = _FAMILIES[row["type"]](row["name"], row["meaning"], labels=names)
        if "told" in row and self._model is not None:
            family.add_metric([self._info[name] for name in names], 1.0)
        for series in layout()[row["name"]]:
            if self._model is not None or not series.needs_model:
                for labels, values in self._values(series):
                    family.add_metric(labels, **values)
        return family

    def _values(self, series: Series) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
        """Yield a series' labels and its numbers as its family takes them: once, or for each process."""
        label = () if series.label is None else series.label[1:]
        if series.each:
            for at in range(self._board.workers):
                yield (*label, str(at)), {"value": self._board.row(at)[series.start]}
            return
        if series.kind == "gauge":  # of the engine, whom one process hears: the others have zero
            yield label, {"value": self._board.highest(series.start)}
            return
        sums = self._board.sums(series.start, series.stop)
        if series.kind == "counter":
            yield label, {"value": sums[0]}
        elif series.kind == "summary":
            yield label, {"count_value": sums[0], "sum_value": sums[1]}
        else:
            buckets = list(zip(self._bounds(series), cumulated(sums[:-1]), strict=True))
            yield label, {"buckets": buckets, "sum_value": sums[-1]}

    def _bounds(self, series: Series) -> list[str]:
        """Return the upper bounds of a histogram as they are shown; made once, as there are many."""
        assert series.buckets is not None
        if series.buckets not in self._shown_bounds:
            shown = [*map(number, bounds(series.buckets, self._model)), "+Inf"]
            self._shown_bounds[series.buckets] = shown
        return self._shown_bounds[series.buckets]


def number(value: float) -> str:
    """Return the shortest text; a whole number without a point, as TGI writes it."""
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _line(sample: Sample, suffix: str) -> str:
    value = number(float(sample.value))
    labels = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in sample.labels.items())
    name = sample.name.removesuffix(suffix)
    return f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"
