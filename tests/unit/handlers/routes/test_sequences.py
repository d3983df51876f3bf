from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from handlers.http.errors import Refused
from handlers.routes.sequences import Flow, counted, draw_seed, label, merged, new_id, run
from handlers.service import Service
from inference.errors import (
    GenerationFailed,
    IncompleteGeneration,
    InvalidInput,
    NotReady,
    Overloaded,
    TemplateFailed,
    ToolRefused,
)
from inference.types import Event, Request

pytestmark = pytest.mark.anyio
Start = Callable[..., Awaitable[Service]]
LONG: dict[str, Any] = {"replies": {"long": "x" * 1000}, "step_seconds": 0.01}


def request(id: str, prompt: str = "hello", **members: Any) -> Request:
    return Request(id=id, prompt=prompt, **members)


def text_of(place: int, event: Event) -> Sequence[object]:
    return [{"place": place, "delta": event.delta}]


def events_of(frames: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(line.removeprefix(b"data: ")) for line in frames.split(b"\n\n") if line]


def told(service: Service) -> list[str]:
    metrics: Any = service.metrics
    return list(metrics.told)


async def until_idle(service: Service) -> None:
    """Wait until all places are free again; the drain ends at once then."""
    await asyncio.wait_for(service.engine.drain(5), 5)


async def test_all_requests_run_side_by_side_and_come_back_in_order(start: Start) -> None:
    service = await start(fake={"replies": {"one": "first", "two": "second"}})
    outputs = await run(service.engine, [request("a", "one"), request("b", "two")], "")
    finishes = [events[-1].finish for events in outputs]
    assert [finish and finish.text for finish in finishes] == ["first", "second"]


async def test_the_first_failure_aborts_the_others_and_is_what_is_raised(start: Start) -> None:
    service = await start(
        fake={"fail_prompts": ["bad"], "replies": {"long": "x" * 1000}, "step_seconds": 0.01}
    )
    with pytest.raises(GenerationFailed, match="injected failure"):
        await run(service.engine, [request("a", "long"), request("b", "bad")], "")
    await until_idle(service)


async def test_a_refused_request_is_raised_as_it_is(start: Start) -> None:
    service = await start()
    with pytest.raises(InvalidInput, match="`inputs` cannot be empty"):
        await run(service.engine, [request("a", ""), request("b", "long")], "")


async def test_events_of_several_requests_are_merged_without_loss(start: Start) -> None:
    service = await start(fake={"replies": {"one": "first", "two": "second one"}})
    generations = [await service.engine.submit(request(name, name)) for name in ("one", "two")]
    texts = ["", ""]
    async for place, batch in merged(generations):
        texts[place] += "".join(event.delta for event in batch)
    assert texts == ["first", "second one"]


class Scripted:
    """A generation that has this to give, all of it at once."""

    def __init__(self, *given: Any) -> None:
        self._given = iter(given)

    async def next_batch(self) -> Any:
        item = next(self._given)
        if isinstance(item, Exception):
            raise item
        return item


@pytest.mark.parametrize("read", [1, 2])
async def test_of_failures_at_once_the_first_is_raised_after_what_is_ready_and_all_are_heard(
    read: int,
) -> None:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    ready: Any = (SimpleNamespace(finish=None),)
    errors = [GenerationFailed(word) for word in ("one", "two", "three")]
    generations: Any = [Scripted(errors[0]), Scripted(ready, errors[1]), Scripted(errors[2])]
    batches = merged(generations)
    assert await anext(batches) == (1, ready)
    if read > 1:
        with pytest.raises(GenerationFailed, match="one"):
            await anext(batches)
    await batches.aclose()
    await asyncio.sleep(0.01)
    del generations, batches, errors
    gc.collect()
    assert unheard == []


async def test_a_flow_gives_framed_events_and_counts_what_ended(start: Start) -> None:
    service = await start(fake={"replies": {"one": "first", "two": "second"}})
    flow = await Flow.start(service, [request("a", "one"), request("b", "two")], "", text_of)
    events = [event async for frames in flow for event in events_of(frames)]
    await flow.aclose()
    assert "".join(event["delta"] for event in events if event["place"] == 1) == "second"
    assert told(service) == ["finished", "finished"]


async def test_a_flow_makes_what_is_long_to_tell_on_a_thread(start: Start) -> None:
    home, threads = threading.get_ident(), dict[int, int]()

    def noted(place: int, event: Event) -> Sequence[object]:
        threads[event.index] = threading.get_ident()
        return text_of(place, event)

    service = await start(fake={"replies": {"one": "first"}})
    echoed = request("a", "one and more", prompt_logprobs=True, prompt_top_n_tokens=1000)
    flow = await Flow.start(service, [echoed], "", noted)
    events = [event async for frames in flow for event in events_of(frames)]
    await flow.aclose()
    assert "".join(event["delta"] for event in events) == "first"
    assert threads[1] != home
    assert told(service) == ["finished"]


async def test_a_flow_that_fails_is_counted_once_and_aborts_the_rest(start: Start) -> None:
    service = await start(
        fake={"fail_prompts": ["bad"], "replies": {"long": "x" * 1000}, "step_seconds": 0.01}
    )
    flow = await Flow.start(service, [request("a", "long"), request("b", "bad")], "", text_of)
    with pytest.raises(GenerationFailed):
        async for _ in flow:
            pass
    await flow.aclose()
    assert told(service) == ["generation"]
    await until_idle(service)


@pytest.mark.parametrize("frames_read", [0, 1])
async def test_a_flow_that_is_closed_early_aborts_its_request_and_counts_it_as_dropped(
    start: Start, frames_read: int
) -> None:
    service = await start(fake=LONG)
    flow = await Flow.start(service, [request("a", "long")], "", text_of)
    for _ in range(frames_read):
        await anext(flow)
    await flow.aclose()
    await flow.aclose()
    assert told(service) == ["dropped"]
    await until_idle(service)


async def test_a_flow_whose_second_request_is_refused_does_not_leave_the_first_running(start: Start) -> None:
    service = await start(fake=LONG)
    with pytest.raises(InvalidInput):
        await Flow.start(service, [request("a", "long"), request("b", "")], "", text_of)
    await until_idle(service)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidInput("x"), "validation"),
        (ToolRefused("x"), "validation"),
        (Refused("x"), "validation"),
        (Overloaded(1), "overloaded"),
        (NotReady("x", 1), "overloaded"),
        (TemplateFailed("x"), "template"),
        (GenerationFailed("x"), "generation"),
        (IncompleteGeneration("x"), "incomplete"),
        (KeyError("x"), "incomplete"),
    ],
)
def test_every_error_has_one_of_tgis_labels(error: Exception, expected: str) -> None:
    assert expected == label(error)


async def test_a_cancelled_request_is_counted_as_dropped_and_stays_cancelled(start: Start) -> None:
    service = await start()
    with pytest.raises(asyncio.CancelledError), counted(service.metrics):
        raise asyncio.CancelledError
    assert told(service) == ["dropped"]


def test_names_and_seeds_do_not_repeat() -> None:
    assert len({new_id() for _ in range(100)}) == 100
    seeds = {draw_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert max(seeds).bit_length() <= 64
