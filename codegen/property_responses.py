"""What the contract promises of Responses beyond shapes: how a stream's events go together, and echoes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Body = Mapping[str, Any]

BEGIN = ["response.created", "response.in_progress"]
ENDS = {"completed": "response.completed", "incomplete": "response.incomplete"}
ADDED, DONE = "response.output_item.added", "response.output_item.done"
TEXT = "response.output_text"
MESSAGE, SEARCH = "message", "tool_search_call"
STEMS = {  # of the events with an item's pieces, and the member of the last one that has all of them
    MESSAGE: (TEXT, "text"),
    "reasoning": ("response.reasoning_text", "text"),
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}
LOGPROBS = "message.output_text.logprobs"
ECHOED: Mapping[str, Any] = {  # what absence stands for in the answer
    "instructions": None,
    "max_output_tokens": None,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_logprobs": 0,
    "parallel_tool_calls": True,
    "metadata": {},
}


def response_problems(events: Sequence[Any], *, failed: bool) -> Iterator[str]:
    """Yield what is wrong with a stream's events, the one that tells of a failure apart."""
    types = [event["type"] for event in events]
    numbers = [event["sequence_number"] for event in events]
    if numbers != list(range(len(events))):
        yield f"events are numbered from 0: {numbers[:20]}"
    if types[:2] != BEGIN:
        yield f"a stream begins with {BEGIN}, not with {types[:2]}"
    ended = [at for at, kind in enumerate(types) if kind in ENDS.values()]
    if ended != ([] if failed else [len(events) - 1]):
        yield f"of {len(events)} events, those at {ended} say that all has ended"
        return
    if failed:
        return
    answer = events[-1]["response"]
    if types[-1] != ENDS.get(answer["status"]):
        yield f"a response that is {answer['status']!r} ends with {types[-1]!r}"
    if [event["item"] for event in events if event["type"] == DONE] != answer["output"]:
        yield "the items that are done aren't those of the whole output"
    for index, item in enumerate(answer["output"]):
        yield from _item_problems([each for each in events if each.get("output_index") == index], item)


def echo_problems(body: Body, answer: Body) -> Iterator[str]:
    """Yield what a whole answer has to have in common with its request."""
    for name, absent in ECHOED.items():
        asked = absent if body.get(name) is None else body[name]
        if answer[name] != asked:
            yield f"`{name}` was {asked!r}, and {answer[name]!r} is told"
    usage = answer["usage"]
    if usage is None:
        if answer["status"] != "failed":
            yield "an answer that has ended has no usage"
        return
    if usage["total_tokens"] != usage["input_tokens"] + usage["output_tokens"]:
        yield f"the tokens don't add up: {usage}"
    limit = body.get("max_output_tokens")
    if limit is not None and usage["output_tokens"] > limit:
        yield f"{limit} tokens were asked for at most, and {usage['output_tokens']} came"
    if (answer["incomplete_details"] is not None) is not (answer["status"] == "incomplete"):
        yield f"an answer that is {answer['status']!r} has the details {answer['incomplete_details']!r}"
    yield from _logprob_problems(body, answer)


def _logprob_problems(body: Body, answer: Body) -> Iterator[str]:
    texts = [part for item in answer["output"] if item["type"] == MESSAGE for part in item["content"]]
    wanted = LOGPROBS in (body.get("include") or ())
    if any(bool(part["logprobs"]) is not wanted for part in texts if part["text"]):
        yield f"log-probabilities were {'' if wanted else 'not '}asked for"


def _item_problems(events: Sequence[Any], item: Body) -> Iterator[str]:
    """Yield what is wrong with the events of one item, whose pieces are the whole of it."""
    kinds = [event["type"] for event in events]
    if (kinds[0], kinds[-1], kinds.count(ADDED), kinds.count(DONE)) != (ADDED, DONE, 1, 1):
        yield f"an item is added once, and then done once: {kinds}"
    if {event.get("item_id", item["id"]) for event in events} != {item["id"]}:
        yield f"an event of the item {item['id']} has another item's id"
    if item["type"] == SEARCH:
        if len(events) != 2:
            yield f"a search for tools has no events of its own: {kinds}"
        return
    stem, member = STEMS[item["type"]]
    pieces = "".join(event["delta"] for event in events if event["type"] == f"{stem}.delta")
    (whole,) = [event for event in events if event["type"] == f"{stem}.done"] or [{}]
    told = item["content"][0]["text"] if member == "text" else item[member]
    if not pieces == whole.get(member) == told:
        yield f"the pieces of an item are {pieces[:80]!r}, and the whole of it is {told[:80]!r}"
    if item["type"] == MESSAGE:
        tokens = [each for event in events if event["type"] == f"{TEXT}.delta" for each in event["logprobs"]]
        if not tokens == whole.get("logprobs") == item["content"][0]["logprobs"]:
            yield "the log-probabilities of a text's pieces aren't those of the whole of it"
