"""Traces of requests, sent by OTLP over gRPC: a span for each, with the times of its generations below it.

Imported only where traces are asked for, as its libraries are. A span's names and attributes are TGI's,
beside those of OpenTelemetry's semantic conventions for HTTP and for generative AI (gen_ai.*).
"""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import openapi
from handlers.access_log import texts
from handlers.account import Account
from handlers.http.errors import has_failed
from handlers.http.operations import operation_table
from handlers.version import version
from inference.types import Grammar

if TYPE_CHECKING:
    from starlette.types import Scope

    from handlers.settings.table import Settings
    from inference.types import Finish, Request, Timings

EXPORT_SECONDS = 5  # for one batch; also what a collector that doesn't answer holds up the end of the process
CONTEXT = (b"traceparent", b"tracestate")
UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"))
MOST = 2**63 - 1  # of an OTLP integer

Attributes = Mapping[str, str | int | float | tuple[str, ...]]

_PROVIDERS: weakref.WeakSet[TracerProvider] = weakref.WeakSet()


def exporting_tracer(settings: Settings) -> trace.Tracer:
    """Return the tracer whose spans go to the collector of `otlp_endpoint`, a batch at a time by a thread."""
    assert settings.otlp_endpoint is not None
    secure = settings.otlp_endpoint.startswith("https://")
    exporter = OTLPSpanExporter(settings.otlp_endpoint, insecure=not secure, timeout=EXPORT_SECONDS)
    return make_tracer(exporter, settings.otlp_service_name)


def make_tracer(exporter: SpanExporter, service_name: str) -> trace.Tracer:
    """Return a tracer of this service; what is left is exported when the process ends."""
    resource = Resource.create({SERVICE_NAME: service_name, SERVICE_VERSION: version()})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter, export_timeout_millis=EXPORT_SECONDS * 1000))
    _PROVIDERS.add(provider)
    return provider.get_tracer("parley", version())


def flush() -> None:
    """Export what is left now, for a process whose end nobody is told of; takes as long as its batches do."""
    for provider in list(_PROVIDERS):
        provider.force_flush(EXPORT_SECONDS * 1000)


class Tracing:
    """Makes the spans of each request with a body, and of each that is part of a trace; an `Observer`."""

    def __init__(self, tracer: trace.Tracer, model: str, *, prompts: bool = False) -> None:
        """`prompts`: tell what was asked and answered."""
        self._tracer = tracer
        self._model = model
        self._prompts = prompts
        self._routes = {row.id: row.path for row in operation_table(openapi.load()).values()}
        self._propagator = TraceContextTextMapPropagator()

    def began(self, scope: Scope, account: Account) -> None:
        """Begin a request's span, below the caller's if it named one."""
        carrier = {
            name.decode("ascii"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in CONTEXT
        }
        if scope["method"] != "POST" and not carrier:
            return  # probes and scrapes would hide everything else
        span = self._tracer.start_span(
            scope["method"],
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=_since_1970()(account.received),
        )
        account.span = span
        account.trace_id = f"{span.get_span_context().trace_id:032x}"

    def ended(self, scope: Scope, account: Account) -> None:
        """End a request's span, after those of its generations."""
        span = account.span
        if not isinstance(span, Span) or account.declined:
            return
        if span.is_recording():
            path = scope["path"]
            route = self._routes.get(
                account.operation, path if account.operation else ""
            )  # an alias: a setting
            span.update_name(f"{scope['method']} {route}".rstrip())
            span.set_attributes(
                {
                    "http.request.method": scope["method"],
                    "http.route": route,
                    "url.path": path,
                    "http.response.status_code": account.status,
                    "request_id": account.request_id,
                }
            )
            if account.error_type:
                span.set_attribute("error.type", account.error_type)
            if has_failed(account.status, account.error_type):
                span.set_status(Status(StatusCode.ERROR, account.error_type))
            for request, finish in account.generations:
                self._generation(span, account.operation, request, finish)
        span.end()

    def _generation(self, parent: Span, operation: str, request: Request, finish: Finish) -> None:
        above, times, nanoseconds = trace.set_span_in_context(parent), finish.timings, _since_1970()
        span = self._tracer.start_span(operation, above, start_time=nanoseconds(times.submitted))
        span.set_attributes(tgi_attributes(request, finish))
        span.set_attributes(gen_ai_attributes(self._model, operation, request, finish))
        if self._prompts:
            told = texts([(request, finish)])
            span.set_attributes({"inputs": told["prompt"], "generated_text": told["generated_text"][0]})
        within = trace.set_span_in_context(span)
        for name, start, end in stages(times):
            stage = self._tracer.start_span(name, within, start_time=nanoseconds(start))
            stage.end(nanoseconds(end))
        span.end(nanoseconds(times.finished))


def stages(times: Timings) -> Iterator[tuple[str, float, float]]:
    """Yield what a generation went through: name, begin, end."""
    yield "validate", times.submitted, times.queued
    yield "queue", times.queued, times.started
    yield "prefill", times.started, times.first_token
    yield "decode", times.first_token, times.finished


def tgi_attributes(request: Request, finish: Finish) -> Attributes:
    """Return what TGI's spans say, its durations in its form."""
    times = finish.timings
    inference = times.finished - times.started
    return {
        "parameters": parameters(request),
        "total_time": duration(times.finished - times.submitted),
        "validation_time": duration(times.queued - times.submitted),
        "queue_time": duration(times.started - times.queued),
        "inference_time": duration(inference),
        "time_per_token": duration(inference / max(finish.generated_tokens, 1)),
        "seed": "None" if finish.seed is None else f"Some({finish.seed})",
    }


def gen_ai_attributes(model: str, operation: str, request: Request, finish: Finish) -> Attributes:
    """Return what OpenTelemetry's conventions for generative AI name."""
    sampling, times = request.sampling, finish.timings
    told: dict[str, str | int | float | tuple[str, ...] | None] = {
        "gen_ai.operation.name": "text_completion" if request.add_special_tokens else "chat",
        "gen_ai.provider.name": "parley",
        "gen_ai.request.model": model,
        "gen_ai.response.model": request.adapter or model,
        "gen_ai.response.finish_reasons": (finish.reason.value,),
        "gen_ai.response.time_to_first_chunk": times.first_token - times.submitted,
        "gen_ai.request.max_tokens": request.max_new_tokens,
        "gen_ai.request.seed": finish.seed if finish.seed is not None and finish.seed <= MOST else None,
        "gen_ai.request.stop_sequences": request.stop or None,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty or None,
        "gen_ai.request.presence_penalty": sampling.presence_penalty or None,
        "gen_ai.request.temperature": sampling.temperature if sampling.sample else 0.0,
        "gen_ai.request.top_k": sampling.top_k or None,
        "gen_ai.request.top_p": sampling.top_p if sampling.top_p < 1 else None,
        "gen_ai.usage.input_tokens": finish.prompt_tokens,
        "gen_ai.usage.output_tokens": finish.generated_tokens,
        "gen_ai.usage.cache_read.input_tokens": finish.cached_tokens,
    }
    return {name: value for name, value in told.items() if value is not None}


def parameters(request: Request) -> str:
    """Return what a generation was asked to be like, as JSON; of `logit_bias` the number, no prompt."""
    return json.dumps(
        {
            "max_new_tokens": request.max_new_tokens,
            "stop": request.stop,
            "top_n_tokens": request.top_n_tokens,
            "grammar": request.grammar.kind.value if isinstance(request.grammar, Grammar) else None,
            **asdict(replace(request.sampling, logit_bias=())),  # there may be tens of thousands
            "logit_bias": len(request.sampling.logit_bias),
        }
    )


def duration(seconds: float) -> str:
    """Return a duration as Rust's Debug writes it: 1.5s, 20.25ms, 3µs, 17ns."""
    nanoseconds = max(round(seconds * 10**9), 0)
    for size, unit in UNITS:
        if nanoseconds >= size:
            whole, rest = divmod(nanoseconds, size)
            digits = f"{rest:0{len(str(size)) - 1}d}".rstrip("0")
            return f"{whole}.{digits}{unit}" if digits else f"{whole}{unit}"
    return f"{nanoseconds}ns"


def _since_1970() -> Callable[[float], int]:
    """Return what makes nanoseconds since 1970 of moments of `time.monotonic`, by one reading of both clocks.

    Of several readings it is that with the least time between the clocks: a thread may lose its turn there.
    """
    readings = []
    for _ in range(3):
        before, now, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after - before, now - (before + after) // 2))
    _, ahead = min(readings)
    return lambda moment: ahead + int(moment * 10**9)
