"""Whether an answer is like the one that the contract shows: the same members, events in the same order.

Texts, ids, numbers and times are free, null and absence aren't. Of an array each element is like some element
of the example's, and it is empty if that is. Of a stream's events only the order of their kinds counts, and
how often one of them is repeated doesn't.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from codegen.examples import Transcript, read_transcript

# what is another each time: ids, times, and tokens found in the cache; and what marks an object that has some
ITS_OWN = {
    *("id", "created", "prompt_tokens_details"),
    *("item_id", "call_id", "created_at", "completed_at", "input_tokens_details"),
}
OF_CACHE = "cache_read_input_tokens"  # beside the tokens that weren't found there
MARKS = {
    "stop_reason",
    "input",
    "created",
    "created_at",
    "prompt_tokens_details",
    "input_tokens_details",
    "item_id",
    "status",
}
ECHOED = {  # in OpenAI's Responses: a member that is told and forgotten is to show
    *("instructions", "max_output_tokens", "temperature", "top_p", "top_logprobs", "text", "reasoning"),
    *("tools", "tool_choice", "parallel_tool_calls"),
}
BY_TOKEN = "top_logprobs"  # in completions an object whose members are tokens' texts


def differences(example: Any, answer: Any, at: str = "") -> Iterator[str]:
    """Yield where an answer has another form than the example."""
    if kind(example) != kind(answer):
        yield f"{at}: {kind(answer)}, where the example has {kind(example)}"
    elif isinstance(example, dict) and _by_token(example, at):
        yield from differences(list(example.values()), list(answer.values()), at)
    elif isinstance(example, dict):
        for name in sorted(example.keys() ^ answer.keys()):
            yield f"{at}.{name}: {'missing' if name in example else 'not in the example'}"
        for name in sorted(example.keys() & answer.keys()):
            yield from differences(example[name], answer[name], f"{at}.{name}")
    elif isinstance(example, list):
        yield from _of_elements(example, answer, at)


def stream_differences(example: str, answer: str) -> Iterator[str]:
    """Yield where a stream differs from the example's transcript."""
    shown, got = read_transcript(example), read_transcript(answer)
    if shown.terminator != got.terminator:
        yield f"ends with {got.terminator!r}, the example with {shown.terminator!r}"
    forms, found = (sequences(transcript) for transcript in (shown, got))
    if sorted(forms.values()) != sorted(found.values()):
        yield f"events: {found}\nexample: {forms}"


def sequences(transcript: Transcript) -> dict[str, list[str]]:
    """Return the forms of each choice's events, in order and without repetitions."""
    choices: dict[str, list[str]] = {}
    for event in transcript.events:
        choices.setdefault(_choice(event), []).append(form(event))
    return {choice: [each for each, _ in groupby(forms)] for choice, forms in choices.items()}


def form(value: Any, name: str = "") -> str:
    """Return the members of a value, at every depth, with the kinds of what they hold."""
    if isinstance(value, list) or (isinstance(value, dict) and _by_token(value, name)):
        items = value.values() if isinstance(value, dict) else value
        return "[" + " | ".join(sorted({form(item, name) for item in items})) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{each}: {form(value[each], each)}" for each in sorted(value)) + "}"
    return kind(value)


def kind(value: Any) -> str:
    """Return what JSON calls a value."""
    kinds = {type(None): "null", bool: "boolean", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "number")


def without_its_own(said: Any) -> Any:
    """Return what an answer says, without what is another each time, or an echo of the request."""
    if isinstance(said, list):
        return [without_its_own(each) for each in said]
    if not isinstance(said, dict):
        return said
    left_out = (ITS_OWN if said.keys() & MARKS else set()) | (
        ECHOED if said.get("object") == "response" else set()
    )
    if OF_CACHE in said:
        left_out |= {OF_CACHE, "input_tokens"}
    return {name: without_its_own(value) for name, value in said.items() if name not in left_out}


def without_numbers(message: str, *free: str) -> str:
    """Return a message with what differs from server to server taken out: numbers, and the words named."""
    for word in free:
        message = message.replace(word, "…")
    return re.sub(r"\d+", "0", message)


def _of_elements(examples: list[Any], answers: list[Any], at: str) -> Iterator[str]:
    if bool(examples) != bool(answers):
        yield f"{at}: {len(answers)} elements, where the example has {len(examples)}"
        return
    for place, answer in enumerate(answers):
        found = [list(differences(example, answer, f"{at}[{place}]")) for example in examples]
        yield from min(found, key=len)


def _choice(event: Any) -> str:
    choices = event.get("choices") if isinstance(event, dict) else None
    return f"choice {choices[0]['index']}" if choices else "request"


def _by_token(example: dict[str, Any], at: str) -> bool:
    return re.sub(r"\[\d+\]$", "", at).rpartition(".")[2] == BY_TOKEN and "token" not in example


def without_id(error: Any) -> dict[str, Any]:
    """Return an error of the document without the request id, which it shows."""
    assert "request_id" in error
    return {name: value for name, value in error.items() if name != "request_id"}
