"""OpenAI's Python client."""

from __future__ import annotations

from typing import Any, Literal

from cases import run
from images import BLUE, RED
from openai import OpenAI
from openai_responses import RESPONSES, response_failed
from pydantic import BaseModel

MESSAGES: Any = [{"role": "user", "content": "Hi, who are you?"}]
QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


class Weather(BaseModel):
    """What is asked for in a form; every text of it is short."""

    city: Literal["Paris", "Rome"]
    unit: Literal["C", "F"]
    sunny: bool


PROPERTIES: Any = {"city": {"enum": ["Paris", "Rome"]}, "unit": {"enum": ["C", "F"]}}
PARAMETERS: Any = {"type": "object", "properties": PROPERTIES, "required": ["city", "unit"]}
TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
CALLING: Any = {
    **{"model": "tgi", "messages": QUESTION, "tools": TOOLS, "temperature": 0, "max_tokens": 100},
    **{"tool_choice": "required", "parallel_tool_calls": False},
}

GRAMMAR: Any = {"syntax": "regex", "definition": "(Paris|Rome), [CF]"}
CUSTOM: Any = {
    "type": "custom",
    "custom": {"name": "note", "format": {"type": "grammar", "grammar": GRAMMAR}},
}
NOTING: Any = {**CALLING, "tools": [CUSTOM], "tool_choice": {"type": "custom", "custom": {"name": "note"}}}


def connect(url: str, key: str = "-") -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def chat(url: str) -> Any:
    answer = connect(url).chat.completions.create(
        model="gpt-4o", messages=MESSAGES, temperature=0, max_tokens=8
    )
    return answer.model_dump()


def chat_stream(url: str) -> Any:
    chunks = connect(url).chat.completions.create(
        model="tgi", messages=MESSAGES, temperature=0, max_tokens=8, stream=True
    )
    return [chunk.model_dump() for chunk in chunks]


def chat_stream_with_usage(url: str) -> Any:
    chunks = connect(url).chat.completions.create(
        model="tgi",
        messages=MESSAGES,
        temperature=0,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    return [chunk.model_dump() for chunk in chunks]


def chat_logprobs(url: str) -> Any:
    answer = connect(url).chat.completions.create(
        model="tgi", messages=MESSAGES, temperature=0, max_tokens=3, logprobs=True, top_logprobs=7
    )
    return answer.model_dump()


def continue_final_message(url: str) -> Any:
    messages: Any = [*MESSAGES, {"role": "assistant", "content": "I am a"}]
    answer = connect(url).chat.completions.create(model="tgi", messages=messages, temperature=0, max_tokens=8)
    return answer.model_dump()


def tools(url: str) -> Any:
    """Have a tool called: whole, as chunks, and as the client's own helper puts the chunks together."""
    client = connect(url)
    whole = client.chat.completions.create(**CALLING, logprobs=True)
    chunks = client.chat.completions.create(**CALLING, stream=True)
    with client.chat.completions.stream(**CALLING) as stream:
        finished = [event.name for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()
    return {
        "whole": whole.model_dump(),
        "chunks": [chunk.model_dump() for chunk in chunks],
        "final": final.choices[0].model_dump(exclude={"message": {"parsed"}}),
        "finished": finished,
    }


def tool_results(url: str) -> Any:
    """Give the result of a call back, and have another tool called."""
    client = connect(url)
    first = client.chat.completions.create(**CALLING).choices[0].message
    assert first.tool_calls is not None
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "18 degrees"}
    again = {**CALLING, "messages": [*QUESTION, first.model_dump(exclude_none=True), result]}
    second = client.chat.completions.create(**again).choices[0].message
    assert second.tool_calls is not None
    return [first.tool_calls[0].id, second.tool_calls[0].id]


def tool_custom(url: str) -> Any:
    """Have a custom tool called, whole and as chunks, and give its result back.

    The client's own helper for streams fails at what it put together of such a call, as of OpenAI's.
    """
    client = connect(url)
    whole = client.chat.completions.create(**NOTING)
    chunks = [chunk.model_dump() for chunk in client.chat.completions.create(**NOTING, stream=True)]
    called = whole.choices[0].message
    assert called.tool_calls is not None
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "Noted"}
    second = client.chat.completions.create(**{**NOTING, "messages": [*QUESTION, called, result]})
    return {"whole": whole.model_dump(), "chunks": chunks, "second": second.model_dump()}


def tool_not_found(url: str) -> Any:
    choice: Any = {"type": "function", "function": {"name": "fly"}}
    return connect(url).chat.completions.create(**{**CALLING, "tool_choice": choice})


def parsed(url: str) -> Any:
    """Have an answer in the form of a class: whole, and streamed."""
    client = connect(url)
    asked: Any = {"model": "tgi", "messages": QUESTION, "response_format": Weather, "max_tokens": 200}
    answer = client.chat.completions.parse(**asked, temperature=1, seed=5)
    with client.chat.completions.stream(**asked, temperature=1, seed=5) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0].message.parsed
    whole = answer.choices[0].message.parsed
    assert whole is not None
    assert streamed is not None
    return {"whole": whole.model_dump(), "streamed": streamed.model_dump()}


def parsed_beside_tools(url: str) -> Any:
    """Ask for a form beside tools, one of which has to be called, or none can be."""
    strict = {
        "name": "get_weather",
        "parameters": {**PARAMETERS, "additionalProperties": False},
        "strict": True,
    }
    tools = [{"type": "function", "function": strict}]
    parse = connect(url).chat.completions.parse
    told = {
        name: parse(**{**CALLING, "tools": tools, "tool_choice": choice}, response_format=Weather)
        for name, choice in (("called", "required"), ("hidden", "none"))
    }
    return {name: answer.choices[0].message.model_dump() for name, answer in told.items()}


def too_long(url: str) -> Any:
    messages: Any = [{"role": "user", "content": "sun " * 5000}]
    return connect(url).chat.completions.create(model="tgi", messages=messages)


def choices(url: str) -> Any:
    """Have three answers: whole, streamed, and as the client's own helper puts the chunks together."""
    asked: Any = {"model": "tgi", "messages": MESSAGES, "n": 3, "seed": 3, "temperature": 2, "max_tokens": 8}
    client = connect(url)
    whole = client.chat.completions.create(**asked)
    chunks = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    return {
        "whole": whole.model_dump(),
        "chunks": [chunk.model_dump() for chunk in chunks],
        "gathered": [choice.message.content for choice in gathered(client, **asked)],
    }


def choices_that_call(url: str) -> Any:
    """Have eight answers call a tool, each at another of its tokens: whole, and put together."""
    asked: Any = {**CALLING, "n": 8, "seed": 0, "temperature": 1}
    client = connect(url)
    whole = client.chat.completions.create(**asked)
    told = [list(whole.choices), gathered(client, **asked)]
    return [[(choice.index, arguments_of(choice)) for choice in choices] for choices in told]


def arguments_of(choice: Any) -> str:
    """Return the arguments of a choice's only call."""
    (call,) = choice.message.tool_calls
    arguments: str = call.function.arguments
    return arguments


def gathered(client: OpenAI, **asked: Any) -> list[Any]:
    """Return the choices of a stream, put together by the client."""
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        return list(stream.current_completion_snapshot.choices)  # of those that were cut, too


def images(url: str) -> Any:
    """Ask about images: one, another, and the first again in an earlier turn and as a stream."""

    def about(data: str) -> Any:
        part = {"type": "image_url", "image_url": {"url": data, "detail": "high"}}
        return {"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]}

    client = connect(url)
    asked: Any = {"model": "tgi", "temperature": 0, "max_tokens": 8}
    answers = [client.chat.completions.create(**asked, messages=[about(data)]) for data in (RED, BLUE)]
    later: Any = [
        about(RED),
        {"role": "assistant", "content": "It is red."},
        {"role": "user", "content": "Is it?"},
    ]
    chunks = client.chat.completions.create(**asked, messages=[about(RED)], stream=True)
    return {
        "answers": [answer.model_dump() for answer in answers],
        "later": client.chat.completions.create(**asked, messages=later).model_dump(),
        "chunks": [chunk.model_dump() for chunk in chunks],
    }


def bad_image(url: str) -> Any:
    part: Any = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/cat.png"}}
    return connect(url).chat.completions.create(
        model="tgi", messages=[{"role": "user", "content": [part]}], max_tokens=8
    )


def biased(url: str) -> Any:
    """Leave one token no chance but to be chosen."""
    answer = connect(url).chat.completions.create(
        model="tgi", messages=MESSAGES, max_tokens=4, logprobs=True, logit_bias={"100": 100}
    )
    assert answer.choices[0].logprobs is not None
    return [entry.token for entry in answer.choices[0].logprobs.content or []]


def completion(url: str) -> Any:
    return (
        connect(url).completions.create(model="tgi", prompt="Once", temperature=0, max_tokens=8).model_dump()
    )


def completion_prompts(url: str) -> Any:
    """Send four prompts as TGI's integration test does: whole, and streamed."""
    prompts = ["Once upon", "Say this", "I", "The answer is"]
    client = connect(url)
    whole = client.completions.create(model="tgi", prompt=prompts, temperature=0, max_tokens=10)
    chunks = client.completions.create(model="tgi", prompt=prompts, temperature=0, max_tokens=10, stream=True)
    return {"whole": whole.model_dump(), "chunks": [chunk.model_dump() for chunk in chunks]}


def models(url: str) -> Any:
    client = connect(url)
    listed = [model.model_dump() for model in client.models.list()]
    return {"listed": listed, "found": client.models.retrieve(listed[0]["id"]).model_dump()}


def unknown_model(url: str) -> Any:
    return connect(url).models.retrieve("gpt-4").model_dump()


def validation_error(url: str) -> Any:
    return connect(url).chat.completions.create(model="tgi", messages=MESSAGES, top_p=7)


def validation_error_streamed(url: str) -> Any:
    return list(connect(url).chat.completions.create(model="tgi", messages=MESSAGES, top_p=7, stream=True))


def wrong_key(url: str) -> Any:
    return connect(url, "wrong").chat.completions.create(model="tgi", messages=MESSAGES)


def overloaded(url: str) -> Any:
    """Ask while a stream holds the only place, and once more after the stream was closed early."""
    client = connect(url, "secret")
    stream = client.completions.create(model="tgi", prompt="long", max_tokens=200, stream=True)
    next(stream)
    try:
        client.completions.create(model="tgi", prompt="test")
    except Exception as error:
        refused = type(error).__name__
    else:
        refused = "nothing"
    stream.close()
    client = OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=5)
    after = client.completions.create(model="tgi", prompt="test", max_tokens=1)
    return {"refused": refused, "after": after.choices[0].finish_reason}


def generation_error_in_a_stream(url: str) -> Any:
    client = connect(url, "secret")
    return list(client.completions.create(model="tgi", prompt="please fail", max_tokens=9, stream=True))


ON_ANY_SERVER = [
    *(chat, chat_stream, chat_stream_with_usage, chat_logprobs, continue_final_message),
    *(
        tools,
        tool_results,
        tool_custom,
        tool_not_found,
        parsed,
        parsed_beside_tools,
        too_long,
        choices,
        biased,
    ),
    *(completion, completion_prompts, models, unknown_model, validation_error, validation_error_streamed),
]
ON_OTHERS = [wrong_key, overloaded, generation_error_in_a_stream, images, bad_image, choices_that_call]

if __name__ == "__main__":
    run([*ON_ANY_SERVER, *ON_OTHERS, *RESPONSES, response_failed])
