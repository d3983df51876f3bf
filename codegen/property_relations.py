"""What an answer must have in common with its request: counts, limits, and the parts that were asked for.

A schema sees one side only; a member that is accepted and then forgotten shows here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from codegen.property_contract import Promise
from codegen.property_messages import answer_problems, put_together
from codegen.property_responses import echo_problems
from codegen.property_texts import choice_problems, generated_problems, token_problems

Body = Mapping[str, Any]


def relation_problems(
    promise: Promise, body: Any, answer: Any, events: Sequence[Any] | None
) -> Iterator[str]:
    """Yield what doesn't belong to the request; `events` is None if the answer isn't a stream."""
    if not isinstance(body, dict):
        return
    if promise.dialects and promise.plain and (body.get("stream") is True) is (events is None):
        yield f"`stream` is {body.get('stream')!r}, and the answer {'no' if events is None else 'a'} stream"
        return
    whole = answer if events is None else _folded(events)
    if isinstance(whole, dict) and whole.get("object") == "response":
        yield from echo_problems(body, whole)
    elif isinstance(whole, dict) and whole.get("type") == "message":
        yield from answer_problems(body, whole)
    elif isinstance(whole, dict) and "choices" in whole:
        yield from _openai_problems(body, whole)
        yield from _usage_problems(body, events) if events else ()
        yield from choice_problems(body, whole, events) if "error" not in whole else ()
    elif "instances" in body:
        yield from _as_many(len(body["instances"]), answer["predictions"], "predictions")
    elif isinstance(body.get("inputs"), list):
        yield from _as_many(len(body["inputs"]), answer["outputs"], "outputs")
        yield from _same("id", body.get("id"), answer.get("id"))
    elif isinstance(answer, dict) and "templated_text" in answer:
        yield from token_problems(answer["templated_text"], answer["tokenize_response"], added=False)
    elif events is None and _are_tokens(answer):
        added = body.get("add_special_tokens") is not False
        yield from token_problems(body["inputs"], answer, added=added)
    elif "parameters" in body:
        yield from _tgi_problems(body, answer, events)


def _openai_problems(body: Body, answer: Body) -> Iterator[str]:
    chat = str(answer.get("object", "")).startswith("chat")  # a body may have what both ask for
    prompts = 1 if chat else _prompts(body.get("prompt"))
    texts = prompts * (body.get("n") or 1)
    if len(answer["choices"]) != texts and "error" not in answer:
        yield f"{texts} choices were asked for, and {len(answer['choices'])} came"
    limit = _chat_limit(body) if chat else body.get("max_tokens")
    usage = answer.get("usage")
    if usage is None:
        return
    if usage["total_tokens"] != usage["prompt_tokens"] + usage["completion_tokens"]:
        yield f"the tokens don't add up: {usage}"
    most = max(body.get("best_of") or 1, body.get("n") or 1) * prompts
    if limit is not None and usage["completion_tokens"] > limit * most:
        yield f"{limit} tokens were asked for at most, and {usage['completion_tokens']} came"


def _chat_limit(body: Body) -> int | None:
    limit = body.get("max_completion_tokens")
    return limit if limit is not None else body.get("max_tokens")


def _prompts(prompt: Any) -> int:
    """Return how many prompts a completion has: a list of texts or of lists of tokens has several."""
    if not isinstance(prompt, list) or (prompt and isinstance(prompt[0], int)):
        return 1
    return len(prompt)


def _folded(events: Sequence[Any]) -> dict[str, Any]:
    """Return OpenAI's chunks as one answer, as far as they say the same; {} for other events."""
    if events and "response" in events[-1]:  # the last event of a Responses stream has it all
        return dict(events[-1]["response"])
    if events and events[0].get("type") == "message_start":
        return put_together(events)
    chunks = [event for event in events if "choices" in event]
    if not chunks:
        return {}
    choices = {choice["index"]: choice for chunk in chunks for choice in chunk["choices"]}
    folded: dict[str, Any] = {"object": chunks[0].get("object"), "choices": list(choices.values())}
    last = events[-1]
    if "error" in last:
        folded["error"] = last["error"]
    if last.get("usage") and not last.get("choices"):
        folded["usage"] = last["usage"]
    return folded


def _usage_problems(body: Body, events: Sequence[Any]) -> Iterator[str]:
    """Yield what is wrong with the chunk without choices, which is there if it was asked for."""
    if not events or "error" in events[-1]:
        return
    asked = bool((body.get("stream_options") or {}).get("include_usage"))
    told = [event for event in events if not event["choices"]]
    if len(told) != asked:
        yield f"`include_usage` is {'' if asked else 'not '}set, and {len(told)} chunks have no choices"
    if any(event.get("usage") is None for event in told):
        yield "a chunk without choices has no usage"


def _are_tokens(answer: Any) -> bool:
    """Return whether an answer is a list of tokens with their places."""
    return isinstance(answer, list) and all(isinstance(each, dict) and "start" in each for each in answer)


def _tgi_problems(body: Body, answer: Any, events: Sequence[Any] | None) -> Iterator[str]:
    parameters = body["parameters"] or {}
    if events is not None:
        if not events or "error" in events[-1]:
            return
        whole = events[-1]
        asked = bool(parameters.get("details"))
        told = whole["details"] is not None
    else:
        whole = answer[0] if isinstance(answer, list) and answer else answer
        if not isinstance(whole, dict) or "generated_text" not in whole:
            return
        asked = bool(parameters.get("details") or parameters.get("decoder_input_details"))
        told = "details" in whole
    if asked is not told:
        yield f"`details` were {'' if asked else 'not '}asked for, and are {'' if told else 'not '}there"
    limit = parameters.get("max_new_tokens")
    came = whole["details"]["generated_tokens"] if told and whole["details"] else len(events or ())
    if limit is not None and came > limit:
        yield f"{limit} tokens were asked for at most, and {came} came"
    yield from generated_problems(body.get("inputs"), parameters, whole)


def _as_many(wanted: int, came: Any, name: str) -> Iterator[str]:
    if not isinstance(came, list) or len(came) != wanted:
        yield f"{wanted} {name} were asked for, and came {came!r}"[:300]


def _same(name: str, asked: Any, told: Any) -> Iterator[str]:
    if asked is not None and asked != told:
        yield f"`{name}` was {asked!r}, and came back as {told!r}"
