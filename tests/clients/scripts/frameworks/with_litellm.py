"""LiteLLM: `openai/...` and `text-completion-openai/...` on OpenAI's API, `huggingface/...` on TGI's."""

from __future__ import annotations

import asyncio
from typing import Any

import litellm
from checking import checks, raised
from subjects import (
    ABOUT_PERSON,
    ABOUT_WEATHER,
    GREETING,
    MODEL,
    TOOLS,
    Person,
    check_call,
    check_person,
    user,
)

litellm.telemetry = False
litellm.suppress_debug_info = True


def asked(url: str, **request: Any) -> dict[str, Any]:
    """Return a request on OpenAI's API."""
    base = {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "-"}
    return {**base, "messages": user(GREETING), "temperature": 0, "max_tokens": 80, **request}


def asked_of_tgi(url: str, **request: Any) -> dict[str, Any]:
    return asked(url, **{"model": "huggingface/tgi", "api_base": url, **request})


def completed(url: str, **request: Any) -> Any:
    """Return a completion of a text."""
    base = {"model": f"text-completion-openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "-"}
    return litellm.text_completion(**{**base, "temperature": 0, "max_tokens": 8, **request})


def gathered(request: dict[str, Any]) -> Any:
    """Stream a request and put the chunks together as LiteLLM does."""
    chunks = list(litellm.completion(**request, stream=True, stream_options={"include_usage": True}))
    return litellm.stream_chunk_builder(chunks, messages=request["messages"])


def check_calls(choice: Any) -> None:
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    for call in choice.message.tool_calls:
        check_call(call.function.name, call.function.arguments)


def chat(url: str) -> None:
    answer = litellm.completion(**asked(url))
    assert answer.choices[0].message.content != ""
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def chat_streamed(url: str) -> None:
    streamed, whole = gathered(asked(url)), litellm.completion(**asked(url))
    assert streamed.choices[0].message.content == whole.choices[0].message.content
    assert streamed.choices[0].message.role == "assistant"
    assert streamed.usage.completion_tokens == whole.usage.completion_tokens


def chat_asynchronous(url: str) -> None:
    assert asyncio.run(litellm.acompletion(**asked(url))).choices[0].message.content != ""


def chat_stop(url: str) -> None:
    whole = litellm.completion(**asked(url)).choices[0].message.content
    end = whole[2:4]
    choice = litellm.completion(**asked(url, stop=[end])).choices[0]
    assert (choice.message.content, choice.finish_reason) == (whole[: whole.index(end)], "stop")


def chat_choices(url: str) -> None:
    answer = litellm.completion(**asked(url, n=3, temperature=1, seed=5))
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def chat_logprobs(url: str) -> None:
    answer = litellm.completion(**asked(url, logprobs=True, top_logprobs=2, max_tokens=5))
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 2 for entry in entries)


def chat_every_setting(url: str) -> None:
    settings = {"presence_penalty": 0.1, "frequency_penalty": 0.1, "logit_bias": {"300": -5}, "top_p": 0.9}
    extra = {"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "user": "me"}
    request = asked(url, seed=3, **{**settings, **extra, "temperature": 0.7})
    first, second = litellm.completion(**request), litellm.completion(**request)
    assert first.choices[0].message.content == second.choices[0].message.content


def refusal(url: str) -> None:
    """Ask for more tokens than the model has, and get the class at which LiteLLM's users fall back."""
    request = asked(url, max_tokens=10_000_000)
    error = raised(litellm.ContextWindowExceededError, lambda: litellm.completion(**request))
    assert "max_new_tokens" in str(error), error


def tools_required(url: str) -> None:
    check_calls(
        litellm.completion(
            **asked(url, messages=user(ABOUT_WEATHER), tools=TOOLS, tool_choice="required")
        ).choices[0]
    )


def tools_streamed(url: str) -> None:
    request = asked(
        url, messages=user(ABOUT_WEATHER), tools=TOOLS, tool_choice="required", parallel_tool_calls=False
    )
    streamed, whole = gathered(request).choices[0], litellm.completion(**request).choices[0]
    check_calls(streamed)
    (one,), (other,) = streamed.message.tool_calls, whole.message.tool_calls
    assert (one.type, one.function) == (other.type, other.function)


def tools_round_trip(url: str) -> None:
    """Send the answer's message back as it came, with the results of its calls."""
    messages = user(ABOUT_WEATHER)
    called = litellm.completion(**asked(url, messages=messages, tools=TOOLS, tool_choice="required")).choices[
        0
    ]
    results = [
        {"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": "3 degrees"}
        for call in called.message.tool_calls
    ]
    answer = litellm.completion(
        **asked(url, messages=[*messages, called.message, *results], tools=TOOLS)
    ).choices[0]
    assert answer.message.content or answer.message.tool_calls


def structured_by_schema(url: str) -> None:
    request = asked(url, messages=user(ABOUT_PERSON), response_format=Person)
    check_person(litellm.completion(**request).choices[0].message.content)
    check_person(gathered(request).choices[0].message.content)


def structured_as_any_object(url: str) -> None:
    request = asked(url, messages=user(ABOUT_PERSON), response_format={"type": "json_object"})
    assert litellm.completion(**request).choices[0].message.content.startswith("{")


def completion(url: str) -> None:
    assert completed(url, prompt="Once upon a time").choices[0].text != ""


def completion_streamed(url: str) -> None:
    chunks = completed(url, prompt="Once upon a time", stream=True)
    streamed = "".join(chunk.choices[0].text or "" for chunk in chunks)
    assert streamed == completed(url, prompt="Once upon a time").choices[0].text


def completion_held_back(url: str) -> None:
    """Stream a text that begins as a stop sequence does: what comes meanwhile has no text, and is no end."""
    begun = completed(url, prompt="Once upon a time").choices[0].text[:-1]
    for stop in (["\n\n"], [f"{begun}#"]):
        whole = completed(url, prompt="Once upon a time", stop=stop).choices[0]
        chunks = list(completed(url, prompt="Once upon a time", stop=stop, stream=True))
        assert "".join(chunk.choices[0].text or "" for chunk in chunks) == whole.text
        *before, last = [chunk.choices[0].finish_reason for chunk in chunks]
        assert (set(before) <= {None}, last) == (True, whole.finish_reason)


def completion_echoed(url: str) -> None:
    prompts = ["Once upon a time", "The cat"]
    answer = completed(url, prompt=prompts, n=2, logprobs=1, echo=True, temperature=1, seed=3)
    starts = [choice.text.startswith(prompts[at // 2]) for at, choice in enumerate(answer.choices)]
    assert starts == [True] * 4, answer.choices


def conversation(url: str) -> None:
    assert litellm.completion(**asked_of_tgi(url)).choices[0].message.content != ""


def conversation_streamed(url: str) -> None:
    streamed, whole = gathered(asked_of_tgi(url)), litellm.completion(**asked_of_tgi(url))
    assert streamed.choices[0].message.content == whole.choices[0].message.content


def conversation_tools(url: str) -> None:
    request = asked_of_tgi(url, messages=user(ABOUT_WEATHER), tools=TOOLS, tool_choice="required")
    check_calls(litellm.completion(**request).choices[0])
    check_calls(gathered(request).choices[0])


CHECKS = (
    *checks(
        "litellm",
        "openai",
        *(
            chat,
            chat_streamed,
            chat_asynchronous,
            chat_stop,
            chat_choices,
            chat_logprobs,
            refusal,
            chat_every_setting,
        ),
        *(tools_required, tools_streamed, tools_round_trip, structured_by_schema, structured_as_any_object),
        *(completion, completion_streamed, completion_held_back, completion_echoed),
    ),
    *checks("litellm", "tgi", conversation, conversation_streamed, conversation_tools),
)
