"""OpenAI's Python client on Responses: whole, streamed, parsed, with calls, and strictly read."""

from __future__ import annotations

from typing import Any, Literal

from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

QUESTION = "What is the weather in Paris?"
ASKED: Any = {"model": "gpt-4o", "input": "Hi, who are you?", "temperature": 0, "max_output_tokens": 8}
PROPERTIES: Any = {"city": {"enum": ["Paris", "Rome"]}, "unit": {"enum": ["C", "F"]}}
PARAMETERS: Any = {"type": "object", "properties": PROPERTIES, "required": ["city", "unit"]}
TOOLS: Any = [{"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}]
CALLING: Any = {
    **{"model": "tgi", "input": QUESTION, "tools": TOOLS, "temperature": 0, "max_output_tokens": 100},
    **{"tool_choice": "required", "parallel_tool_calls": False},
}


FORM: Any = {"type": "grammar", "syntax": "regex", "definition": "(Paris|Rome), [CF]"}
CUSTOM: Any = {"type": "custom", "name": "note", "format": FORM}
GROUP: Any = {"type": "namespace", "name": "crm", "description": "Notes.", "tools": [CUSTOM]}
NOTING: Any = {**CALLING, "tools": [CUSTOM], "tool_choice": {"type": "custom", "name": "note"}}


class Weather(BaseModel):
    """What is asked for in a form; every text of it is short."""

    city: Literal["Paris", "Rome"]
    unit: Literal["C", "F"]
    sunny: bool


def connect(url: str, key: str = "-") -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def strictly(answer: Any) -> None:
    """Raise unless pydantic takes an answer for OpenAI's, which the client itself doesn't ask for."""
    Response.model_validate(answer.model_dump(by_alias=True), strict=True)


def response(url: str) -> Any:
    answer = connect(url).responses.create(**ASKED, instructions="Be short.", metadata={"a": "b"})
    strictly(answer)
    return {**answer.model_dump(), "text_of_it": answer.output_text}


def response_stream(url: str) -> Any:
    """Have events: as they come, each strictly read, and as the client's helper puts them together."""
    client, events = connect(url), TypeAdapter(ResponseStreamEvent)
    with client.responses.stream(**{**ASKED, "max_output_tokens": 300}) as stream:
        told = [event.type for event in stream]
        final = stream.get_final_response()
    raw = list(client.responses.create(**ASKED, stream=True))
    for event in raw:
        events.validate_python(event.model_dump(by_alias=True), strict=True)
    whole = client.responses.create(**{**ASKED, "max_output_tokens": 300})
    return {
        "told": told,
        "final": final.output_text,
        "whole": whole.output_text,
        "raw": [event.model_dump() for event in raw],
    }


def response_logprobs(url: str) -> Any:
    answer = connect(url).responses.create(
        **{**ASKED, "include": ["message.output_text.logprobs"], "top_logprobs": 3}
    )
    strictly(answer)
    return answer.model_dump()


def response_tools(url: str) -> Any:
    """Have a function called, whole and streamed; give its result back, and have it called again."""
    client = connect(url)
    whole = client.responses.create(**CALLING)
    strictly(whole)
    with client.responses.stream(**CALLING) as stream:
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    result = {"type": "function_call_output", "call_id": call_of(whole).call_id, "output": "18 degrees"}
    again = [{"role": "user", "content": QUESTION}, *whole.output, result]
    second = client.responses.create(**{**CALLING, "input": again})
    return {
        "whole": call_of(whole).model_dump(),
        "final": call_of(final).model_dump(exclude={"parsed_arguments"}),
        "deltas": "".join(deltas),
        "second": call_of(second).model_dump(),
    }


def response_custom(url: str) -> Any:
    """Have a custom tool called, alone and of a group beside a tool of OpenAI's, and give its result back."""
    client = connect(url)
    whole = client.responses.create(**NOTING)
    strictly(whole)
    with client.responses.stream(**NOTING) as stream:
        deltas = [event.delta for event in stream if event.type == "response.custom_tool_call_input.delta"]
        final = stream.get_final_response()
    result = {"type": "custom_tool_call_output", "call_id": call_of(whole).call_id, "output": "Noted"}
    items = [{"role": "user", "content": QUESTION}, *whole.output, result]
    group = {**NOTING, "input": items, "tools": [GROUP, {"type": "web_search"}]}
    raw = client.responses.with_raw_response.create(**group)
    strictly(raw.parse())
    return {
        "whole": call_of(whole).model_dump(),
        "final": call_of(final).model_dump(),
        "deltas": "".join(deltas),
        "grouped": call_of(raw.parse()).model_dump(),
        "ignored": raw.headers.get("x-ignored-parameters"),
    }


def call_of(answer: Any) -> Any:
    (call,) = answer.output
    return call


def response_parsed(url: str) -> Any:
    """Have a text in the form of a class: whole, and streamed; with and without functions beside it."""
    client = connect(url)
    asked: Any = {"model": "tgi", "input": QUESTION, "text_format": Weather, "max_output_tokens": 200}
    asked |= {"temperature": 1, "extra_body": {"seed": 5}}
    whole = client.responses.parse(**asked).output_parsed
    with client.responses.stream(**asked) as stream:
        streamed = stream.get_final_response().output_parsed
    beside = client.responses.parse(**asked, tools=TOOLS, tool_choice="auto")
    assert beside.output_parsed is not None or call_of(beside).type == "function_call"
    return {"whole": whole.model_dump(), "streamed": streamed.model_dump()}


def response_conversation(url: str) -> Any:
    """Go on with what was said: the items of an answer are given back as they came."""
    client = connect(url)
    first = client.responses.create(**ASKED)
    again = [{"role": "user", "content": ASKED["input"]}, *first.output, {"role": "user", "content": "More."}]
    raw = client.responses.with_raw_response.create(**{**ASKED, "input": again})
    return {"ignored": raw.headers.get("x-ignored-parameters"), "text": raw.parse().output_text}


def response_counted(url: str) -> Any:
    """Have an input counted, before it is answered."""
    client, members = connect(url), {name: CALLING[name] for name in ("model", "input", "tools")}
    counted = client.responses.input_tokens.count(**members)
    return {"counted": counted.model_dump(), "usage": client.responses.create(**CALLING).usage.input_tokens}


def response_stored(url: str) -> Any:
    return connect(url).responses.create(**ASKED, previous_response_id="resp_0")


def response_retrieved(url: str) -> Any:
    return connect(url).responses.retrieve("resp_0")


def response_failed(url: str) -> Any:
    events = connect(url, "secret").responses.create(model="tgi", input="please fail", stream=True)
    return [event.model_dump() for event in events]


RESPONSES = [
    *(response, response_stream, response_logprobs, response_tools, response_parsed),
    *(response_conversation, response_counted, response_stored, response_retrieved, response_custom),
]
