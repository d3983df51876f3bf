"""Traces as a collector gets them: by OTLP over gRPC, below the caller's span, without what was asked."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from handlers.account import Account
from handlers.settings.table import Settings
from handlers.tracing import Tracing, duration, exporting_tracer, make_tracer, parameters
from inference.types import Request, Sampling
from tests.contract.serving import served

pytestmark = pytest.mark.anyio

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
SECRET = "the-lighthouse-keeper"
BODY = {
    "inputs": SECRET,
    "parameters": {"max_new_tokens": 5, "seed": 7, "temperature": 0.5, "do_sample": True},
}
TGI = {
    "parameters",
    "total_time",
    "validation_time",
    "queue_time",
    "inference_time",
    "time_per_token",
    "seed",
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Collector:
    """An OTLP receiver."""

    port: int = 0
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)

    def spans(self) -> list[ProtoSpan]:
        scopes = [each for got in self.requests for each in got.resource_spans]
        return [span for each in scopes for inner in each.scope_spans for span in inner.spans]

    def resource(self) -> dict[str, Any]:
        return attributes(self.requests[0].resource_spans[0].resource.attributes)


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Serve OTLP's one method."""
    found = Collector()

    def export(request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
        found.requests.append(request)
        return ExportTraceServiceResponse()

    method = grpc.unary_unary_rpc_method_handler(
        export, ExportTraceServiceRequest.FromString, ExportTraceServiceResponse.SerializeToString
    )
    name = "opentelemetry.proto.collector.trace.v1.TraceService"
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": method}),))
    found.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield found
    server.stop(None).wait()


def attributes(pairs: Any) -> dict[str, Any]:
    """Return attributes as a collector reads them."""

    def read(value: AnyValue) -> Any:
        kind = value.WhichOneof("value")
        assert kind is not None
        return (
            [read(each) for each in value.array_value.values]
            if kind == "array_value"
            else getattr(value, kind)
        )

    given: list[KeyValue] = list(pairs)
    return {each.key: read(each.value) for each in given}


async def test_a_collector_gets_a_request_with_what_tgi_tells_of_it(collector: Collector) -> None:
    settings = Settings(otlp_endpoint=f"http://127.0.0.1:{collector.port}", otlp_service_name="mine")
    tracer = exporting_tracer(settings)
    async with served(observers=[Tracing(tracer, "org/model")]) as server:
        answer = await server.http.post("/generate", json=BODY, headers={**CALLER, "x-request-id": "id-1"})
        assert answer.status_code == 200
    flush(tracer)
    spans = {span.name: span for span in collector.spans()}
    assert {"POST /generate", "generate", "validate", "queue", "prefill", "decode"} == spans.keys()
    assert "mine" == collector.resource()["service.name"]
    root, generate = spans["POST /generate"], spans["generate"]
    assert (TRACE, PARENT) == (root.trace_id.hex(), root.parent_span_id.hex())
    assert root.span_id == generate.parent_span_id
    assert {generate.span_id} == {
        spans[name].parent_span_id for name in ("validate", "queue", "prefill", "decode")
    }
    told = attributes(generate.attributes)
    assert TGI <= told.keys()
    assert "Some(7)" == told["seed"]
    assert (0.5, 5) == tuple(
        json.loads(told["parameters"])[name] for name in ("temperature", "max_new_tokens")
    )
    assert (5, 7, 0.5) == tuple(
        told[f"gen_ai.{name}"] for name in ("usage.output_tokens", "request.seed", "request.temperature")
    )
    assert ["length"] == told["gen_ai.response.finish_reasons"]
    about = attributes(root.attributes)
    assert (200, "id-1") == (about["http.response.status_code"], about["request_id"])
    assert all(SECRET not in str(attributes(span.attributes)) for span in collector.spans())


async def test_stages_lie_within_their_generation_and_that_within_its_request(collector: Collector) -> None:
    tracer = exporting_tracer(Settings(otlp_endpoint=f"127.0.0.1:{collector.port}"))
    async with served(observers=[Tracing(tracer, "m")], fake={"step_seconds": 0.002}) as server:
        await server.post("/generate_stream", BODY)
    flush(tracer)
    spans = {span.name: span for span in collector.spans()}
    order = [spans[name] for name in ("validate", "queue", "prefill", "decode")]
    for before, after in pairwise(order):
        assert before.start_time_unix_nano <= before.end_time_unix_nano == after.start_time_unix_nano
    whole, root = spans["generate_stream"], spans["POST /generate_stream"]
    assert root.start_time_unix_nano <= whole.start_time_unix_nano + 1e6
    assert whole.end_time_unix_nano <= root.end_time_unix_nano + 1e6
    # From the queue on: a token may be heard of late, but none before it was made
    assert order[-1].end_time_unix_nano - order[1].start_time_unix_nano >= 4 * 0.002 * 1e9


async def traced(
    path: str, body: Any, *, prompts: bool = False, method: str = "POST", **more: Any
) -> list[Any]:
    """Return the finished spans of one request."""
    exporter = InMemorySpanExporter()
    tracer = make_tracer(exporter, "s")
    tracer.span_processor.add_span_processor(SimpleSpanProcessor(exporter))  # type: ignore[attr-defined]
    headers = more.pop("headers", {})
    async with served(observers=[Tracing(tracer, "m", prompts=prompts)], **more) as server:
        await server.http.request(method, path, json=body, headers=headers)
    return list(exporter.get_finished_spans())


async def test_prompts_and_answers_are_told_only_if_asked_for() -> None:
    spans = await traced("/generate", BODY, prompts=True)
    (generate,) = [span for span in spans if span.name == "generate"]
    assert SECRET == generate.attributes["inputs"]
    assert generate.attributes["generated_text"]


async def test_a_chat_with_two_choices_has_two_generations() -> None:
    body = {"messages": [{"role": "user", "content": SECRET}], "n": 2, "max_tokens": 3}
    spans = await traced("/v1/chat/completions", body)
    chats = [span for span in spans if span.name == "chat_completions"]
    assert ["chat", "chat"] == [span.attributes["gen_ai.operation.name"] for span in chats]


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/responses", {"input": SECRET}, "chat"),
        ("/invocations", {"messages": [{"role": "user", "content": SECRET}]}, "chat"),
        ("/invocations", {"inputs": SECRET}, "text_completion"),
        ("/v1/completions", {"prompt": SECRET}, "text_completion"),
    ],
)
async def test_a_chat_is_one_at_any_address(path: str, body: Any, kind: str) -> None:
    spans = await traced(path, body)
    told = [span.attributes.get("gen_ai.operation.name") for span in spans]
    assert [each for each in told if each] == [kind]


def test_biases_are_counted_not_listed() -> None:
    biases = tuple((id, 1.5) for id in range(30_000))
    told = parameters(Request(id="r", prompt=SECRET, sampling=Sampling(logit_bias=biases, seed=7)))
    assert (json.loads(told)["logit_bias"], json.loads(told)["seed"]) == (30_000, 7)
    assert len(told) < 1000


async def test_a_route_that_is_a_setting_is_named() -> None:
    body = {"instances": [{"inputs": SECRET}]}
    spans = await traced("/predict/here", body, aip_predict_route="/predict/here")
    assert "/predict/here" in [span.attributes.get("http.route") for span in spans]


async def test_a_route_is_named_without_the_names_in_its_path() -> None:
    (span,) = await traced("/v2/models/some-name/infer", {"inputs": []})
    assert "POST /v2/models/{name}/infer" == span.name
    assert "/v2/models/some-name/infer" == span.attributes["url.path"]


async def test_a_refused_request_has_its_reason() -> None:
    (span,) = await traced("/generate", {"inputs": ""})
    assert (422, "validation") == tuple(
        span.attributes[name] for name in ("http.response.status_code", "error.type")
    )


@pytest.mark.parametrize(
    ("status", "error_type", "failed"),
    [
        (200, "", False),
        (200, "generation", True),  # of a stream that had begun
        (422, "validation", False),
        (424, "generation", True),
        (429, "overloaded", False),
        (503, "not_ready", True),
        (529, "overloaded", False),  # Anthropic's 429
    ],
)
def test_a_span_has_failed_where_the_server_has(status: int, error_type: str, failed: bool) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(provider.get_tracer("test"), "org/m")
    scope = {"method": "POST", "path": "/v1/messages", "headers": []}
    account = Account("id", time.monotonic(), status=status, error_type=error_type)
    tracing.began(scope, account)
    tracing.ended(scope, account)
    (span,) = exporter.get_finished_spans()
    assert failed == (span.status.status_code is StatusCode.ERROR)


@pytest.mark.parametrize(("headers", "count"), [({}, 0), (CALLER, 1), ({"traceparent": "00-junk"}, 1)])
async def test_probes_are_traced_only_as_part_of_a_trace(headers: dict[str, str], count: int) -> None:
    assert count == len(await traced("/health", None, method="GET", headers=headers))


async def test_a_caller_that_does_not_sample_has_no_spans() -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    assert [] == await traced("/generate", BODY, headers=headers)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.5, "1.5s"), (2, "2s"), (0.02025, "20.25ms"), (3e-6, "3µs"), (17e-9, "17ns"), (0, "0ns"), (-1, "0ns")],
)
def test_durations_are_written_as_tgi_writes_them(seconds: float, text: str) -> None:
    assert text == duration(seconds)


def test_nothing_of_it_is_imported_where_no_traces_are_asked_for() -> None:
    code = (
        "import sys, handlers.app; print([m for m in sys.modules if m.startswith(('opentelemetry', 'grpc'))])"
    )
    assert "[]" == subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()


def flush(tracer: Any) -> None:
    """Have everything exported."""
    assert tracer.span_processor.force_flush()
