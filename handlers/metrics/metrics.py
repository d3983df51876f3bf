"""The metrics of openapi/metrics.yaml: counted here, shown by the exposition."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from handlers.account import Account, current_account, note_generation
from handlers.http.errors import has_failed
from handlers.http.operations import WATCHING
from handlers.http.replies import TextReply, text_reply
from handlers.metrics.board import Board
from handlers.metrics.buckets import Histogram
from handlers.metrics.exposition import Exposition
from handlers.metrics.table import all_series, bounds, width
from handlers.version import version
from inference.core import Life
from inference.step_stats import Obstacle, StepStats
from inference.types import Finish, ModelInfo, Request

if TYPE_CHECKING:
    from starlette.types import Scope

    from handlers.http.call import Call
    from handlers.service import Service

# what counts a request that an API process died with, beside what counts those that have asked for tokens
LOST = (("parley_http_requests", "other"), ("parley_http_faults", ""))
LOST_ASKING = ("tgi_request_failure", "incomplete")
OWN = ("parley_worker_in_flight", "parley_worker_preparing", "parley_worker_generating")  # of requests held
OBSTACLES = tuple(Obstacle)  # an enumeration takes its time to say what is in it


async def metrics(service: Service, call: Call[None]) -> TextReply:
    """Show every metric as Prometheus text."""
    return text_reply(service.metrics.render())


class Metrics:
    """Counts what the HTTP side and the engine tell it, on the event loop; `render` may run in any thread.

    Several processes count in rows of one board, and each shows the sums. What is told of the engine is told
    to one of them only: the one for which `hears_engine`. Implements `Observer`.
    """

    def __init__(self, board: Board | None = None, row: int = 0) -> None:
        """`row` is this process's own; without a board there are no others."""
        self._board = Board.own(width()) if board is None else board
        self._numbers = self._board.row(row)
        self._at = {series.key: series.start for series in all_series() if series.buckets is None}
        self._histograms: dict[tuple[str, str], Histogram] = {}
        self._model: ModelInfo | None = None
        self._lost = False  # the engine died, and isn't back
        self._exposition = Exposition(self._board)
        self.hears_engine = row == self._board.rows - 1
        self.render = self._exposition.render
        self._make_histograms(needs_model=False)
        for name in OWN:
            self._set(name, 0)  # whoever had this row before has died with its requests

    def bind(self, model: ModelInfo) -> None:
        """Take what is known of the loaded model; once."""
        if self._model is not None:
            raise RuntimeError("the metrics are bound to a model already")
        self._model = model
        self._make_histograms(needs_model=True)
        info = {
            "model_id": model.id,
            "model_sha": model.sha or "",
            "dtype": model.dtype,
            "device_type": model.device_type,
            "level": model.level,
            "version": version(),
        }
        self._exposition.bind(model, info)
        self._set("tgi_batch_max_total_tokens", model.max_batch_total_tokens)
        if self.hears_engine:
            self._set("parley_engine_up", 1)

    # --- generations ------------------------------------------------------------------------

    def count_request(self) -> None:
        """Count a request received, and that it is being answered."""
        self._count("tgi_request_count")
        account = current_account()
        if account is not None and not account.asks:
            account.asks = True
            self._increase("parley_worker_preparing", by=-account.brings)
            self._increase("parley_worker_generating")

    def failure(self, err: str) -> None:
        """Count a request refused or failed; raises KeyError for an `err` that metrics.yaml doesn't name."""
        self._count("tgi_request_failure", err)

    def finished(self, finish: Finish, request: Request) -> None:
        """Record one generation that ended with its last token."""
        note_generation(request, finish)
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
        self._observe("parley_request_first_token_duration", times.first_token - times.submitted)
        if generated > 1:
            apart = (times.finished - times.first_token) / (generated - 1)
            self._observe("parley_request_next_token_duration", apart)

    # --- the engine -------------------------------------------------------------------------

    def on_step(self, step: StepStats) -> None:
        """Record one step of the engine."""
        self._set("tgi_queue_size", step.waiting)
        self._set("tgi_batch_current_size", step.running)
        self._set("tgi_batch_current_max_tokens", step.kv_tokens)
        for obstacle in OBSTACLES:
            rest = step.waiting - step.waiting_prefix if obstacle is step.obstacle else 0
            self._set("parley_queue_waiting", rest, obstacle)
        self._set("parley_queue_waiting", step.waiting_prefix, "prefix")
        if self._model is not None:
            self._set("parley_kv_cache_usage", step.held_tokens / self._model.max_batch_total_tokens)
        self._count_step(step, "prefill" if step.prefill_tokens else "decode")

    def renew(self, life: Life, model: ModelInfo | None) -> None:
        """Take what is known of an engine that has taken another's place: it may have another cache."""
        if life is Life.UP and model is not None:
            self._model = model
            self._set("tgi_batch_max_total_tokens", model.max_batch_total_tokens)

    def on_life(self, life: Life, model: ModelInfo | None) -> None:
        """Record that the engine died, and with it what ran, or that another one has taken its place."""
        self.renew(life, model)
        self._set("parley_engine_up", life is Life.UP)
        if life is Life.UP:
            self._increase("parley_engine_restarts", by=self._lost)
        else:
            for name in ("tgi_queue_size", "tgi_batch_current_size", "tgi_batch_current_max_tokens"):
                self._set(name, 0)
            for reason in (*Obstacle, "prefix"):
                self._set("parley_queue_waiting", 0, reason)
            self._set("parley_kv_cache_usage", 0)
        self._lost = life is not Life.UP

    def _count_step(self, step: StepStats, method: str) -> None:
        forward, sample = step.forward_seconds, step.sample_seconds
        if not forward + sample and not step.failed:
            return  # nothing was computed: it only says how things stand
        self._increase("tgi_batch_inference_count", method)
        self._increase("parley_step_retries", by=step.again)
        if step.failed:
            self._increase("tgi_batch_inference_failure", method)
            return
        self._increase("tgi_batch_inference_success", method)
        self._observe("tgi_batch_inference_duration", forward + sample, method)
        self._observe("tgi_batch_forward_duration", forward, method)
        self._observe("tgi_batch_decode_duration", sample, method)
        if step.admitted:
            self._observe("tgi_batch_next_size", step.admitted)
        self._observe("tgi_batch_filter_duration", step.publish_seconds, method)
        if step.admitted and step.decode_sequences:
            self._increase("tgi_batch_concat", "chunking")
            self._observe("tgi_batch_concat_duration", step.schedule_seconds, "decode")
        self._increase("parley_computed_tokens", "prompt", by=step.prefill_tokens)
        self._increase("parley_computed_tokens", "generated", by=step.decode_sequences + step.guessed)
        self._add_up("tgi_request_skipped_tokens", step.decode_sequences, step.confirmed)
        self._increase("parley_guessed_tokens", "accepted", by=step.confirmed)
        self._increase("parley_guessed_tokens", "rejected", by=step.guessed - step.confirmed)
        self._increase("parley_prefix_cache_query_tokens", by=step.prefill_tokens + step.cached_tokens)
        self._increase("parley_prefix_cache_hit_tokens", by=step.cached_tokens)
        self._increase("parley_preemptions", by=step.preempted)

    # --- HTTP -------------------------------------------------------------------------------

    def began(self, scope: Scope, account: Account) -> None:
        """Count a request whose head has come."""
        self._increase("parley_worker_in_flight")
        account.brings = scope.get("method") == "POST"
        self._increase("parley_worker_preparing", by=account.brings)

    def ended(self, scope: Scope, account: Account) -> None:
        """Count a request that was answered, refused or left."""
        self._increase("parley_worker_in_flight", by=-1)
        self._increase("parley_worker_preparing", by=-(account.brings and not account.asks))
        self._increase("parley_worker_generating", by=-account.asks)
        if account.declined:
            self._increase("parley_http_declined")
            return
        self._increase("parley_worker_requests")
        if account.error_type:
            self._increase_known("parley_http_failures", account.error_type)
        if account.operation in WATCHING:
            self._increase_known("parley_http_probes", str(account.status))
            return
        self._increase_known("parley_http_requests", str(account.status))
        self._increase("parley_http_faults", by=has_failed(account.status, account.error_type))
        self._observe("parley_http_duration", time.monotonic() - account.received)

    def bury(self, row: int) -> None:
        """Count the requests that the process of a row has died with: nobody was told how they end.

        What only watched is none of them: nobody's work was lost.
        """
        numbers = self._board.row(row)
        _, preparing, asking = held = [self._at[name, ""] for name in OWN]
        for key in LOST:
            numbers[self._at[key]] += numbers[preparing] + numbers[asking]
        numbers[self._at[LOST_ASKING]] += numbers[asking]
        for at in held:
            numbers[at] = 0

    # --- the log ----------------------------------------------------------------------------

    def log_dropped(self, lines: int) -> None:
        """Count lines of the log that were not written; from any thread, one at a time."""
        self._increase("parley_log_dropped_lines", by=lines)

    # --- below ------------------------------------------------------------------------------

    def _make_histograms(self, *, needs_model: bool) -> None:
        for series in all_series():
            if series.buckets is not None and series.needs_model is needs_model:
                numbers = self._numbers[series.start : series.stop]
                self._histograms[series.key] = Histogram(bounds(series.buckets, self._model), numbers)

    def _increase(self, name: str, value: str = "", by: float = 1) -> None:
        self._numbers[self._at[name, value]] += by

    def _count(self, name: str, value: str = "") -> None:
        """Increase a counter by what is the present request's, if there is one."""
        at, account = self._at[name, value], current_account()
        if account is None:
            self._numbers[at] += 1
        else:
            account.count(partial(self._add, at))

    def _add(self, at: int) -> None:
        self._numbers[at] += 1

    def _add_up(self, name: str, count: int, amount: float) -> None:
        """Add to a summary."""
        start = self._at[name, ""]
        self._numbers[start] += count
        self._numbers[start + 1] += amount

    def _increase_known(self, name: str, value: str) -> None:
        self._increase(name, value if (name, value) in self._at else "other")

    def _set(self, name: str, to: float, value: str = "") -> None:
        self._numbers[self._at[name, value]] = to

    def _observe(self, name: str, amount: float, value: str = "") -> None:
        self._histograms[name, value].observe(amount)

    def _allowed(self, finish: Finish, request: Request) -> int:
        """Return how many tokens could be generated."""
        assert self._model is not None
        room = self._model.max_total_tokens - finish.prompt_tokens
        return room if request.max_new_tokens is None else min(request.max_new_tokens, room)
