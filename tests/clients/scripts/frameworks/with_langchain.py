"""LangChain: `ChatOpenAI`, `OpenAI` on OpenAI's API, `HuggingFaceEndpoint`, `ChatHuggingFace` on TGI's."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from functools import reduce
from operator import add
from typing import Any

from checking import checks, raised
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import StructuredTool
from langchain_huggingface import ChatHuggingFace, HuggingFaceEndpoint
from langchain_openai import ChatOpenAI, OpenAI
from subjects import (
    ABOUT_PERSON,
    ABOUT_WEATHER,
    FUNCTIONS,
    GREETING,
    MODEL,
    PARAMETERS,
    Person,
    check_call,
)

TOOLS = [
    StructuredTool.from_function(function, args_schema=PARAMETERS[name])
    for name, function in FUNCTIONS.items()
]


def chat_model(url: str, **settings: Any) -> ChatOpenAI:
    settings = {"temperature": 0, "max_tokens": 80, "max_retries": 0, **settings}
    return ChatOpenAI(base_url=f"{url}/v1", api_key="-", model=MODEL, **settings)


def text_model(url: str, **settings: Any) -> OpenAI:
    settings = {"temperature": 0, "max_tokens": 16, "max_retries": 0, **settings}
    return OpenAI(base_url=f"{url}/v1", api_key="-", model=MODEL, **settings)


def endpoint(url: str, **settings: Any) -> HuggingFaceEndpoint:
    """Return the endpoint with a seed, since it always sends a temperature, and that means sampling."""
    return HuggingFaceEndpoint(endpoint_url=url, **{"max_new_tokens": 80, "seed": 7, **settings})


def check_calls(message: AIMessage) -> None:
    assert not message.invalid_tool_calls, message.invalid_tool_calls
    assert message.tool_calls, message
    for call in message.tool_calls:
        check_call(call["name"], call["args"])


def gather(chunks: Any) -> Any:
    """Add up a stream's chunks as LangChain does."""
    return reduce(add, chunks)


def chat(url: str) -> None:
    messages = [SystemMessage("You are a helpful assistant."), HumanMessage(GREETING)]
    answer = chat_model(url).invoke(messages)
    assert answer.content != ""
    assert answer.response_metadata["finish_reason"] in ("stop", "length")
    usage = answer.usage_metadata
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def chat_streamed(url: str) -> None:
    model = chat_model(url)
    streamed = gather(model.stream(GREETING, stream_usage=True))
    whole = model.invoke(GREETING)
    assert streamed.content == whole.content
    assert streamed.usage_metadata["total_tokens"] == whole.usage_metadata["total_tokens"]


def chat_asynchronous(url: str) -> None:
    async def ask() -> list[Any]:
        model = chat_model(url)
        return [await model.ainvoke(GREETING), gather([chunk async for chunk in model.astream(GREETING)])]

    whole, streamed = asyncio.run(ask())
    assert whole.content == streamed.content != ""


def chat_batch(url: str) -> None:
    answers = chat_model(url).batch([GREETING, ABOUT_WEATHER, GREETING])
    assert answers[0].content == answers[2].content != ""


def chat_stop(url: str) -> None:
    whole = chat_model(url).invoke(GREETING).content
    end = whole[2:4]
    assert chat_model(url).invoke(GREETING, stop=[end]).content == whole[: whole.index(end)]


def chat_choices(url: str) -> None:
    result = chat_model(url, n=3, temperature=1, seed=5).generate([[HumanMessage(GREETING)]])
    assert len(result.generations[0]) == 3


def chat_logprobs(url: str) -> None:
    answer = chat_model(url, logprobs=True, top_logprobs=3, max_tokens=5).invoke(GREETING)
    entries = answer.response_metadata["logprobs"]["content"]
    assert len(entries) == answer.usage_metadata["output_tokens"]
    assert all(len(entry["top_logprobs"]) == 3 and entry["logprob"] <= 0 for entry in entries)


def chat_every_setting(url: str) -> None:
    settings = {"presence_penalty": 0.1, "frequency_penalty": 0.1, "logit_bias": {"300": -5}, "top_p": 0.9}
    extra = {"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    model = chat_model(url, seed=3, temperature=0.7, extra_body=extra, stop_sequences=["\n\n"], **settings)
    assert model.invoke(GREETING).content == model.invoke(GREETING).content


def refusal(url: str) -> None:
    """Ask for more tokens than any model gives: what agents shorten their prompt for."""
    model = chat_model(url, max_tokens=10_000_000)
    error = raised(ContextOverflowError, lambda: model.invoke(GREETING))
    assert ("Error code: 400" in str(error), "max_new_tokens" in str(error)) == (True, True), error


def tools_required(url: str) -> None:
    check_calls(chat_model(url).bind_tools(TOOLS, tool_choice="any").invoke(ABOUT_WEATHER))


def tools_named(url: str) -> None:
    message = chat_model(url).bind_tools(TOOLS, tool_choice="get_time").invoke(ABOUT_WEATHER)
    check_calls(message)
    assert {call["name"] for call in message.tool_calls} == {"get_time"}


def tools_streamed(url: str) -> None:
    model = chat_model(url).bind_tools(TOOLS, tool_choice="any", parallel_tool_calls=False)
    streamed, whole = gather(model.stream(ABOUT_WEATHER)), model.invoke(ABOUT_WEATHER)
    check_calls(streamed)
    one, other = ({**call, "id": None} for message in (streamed, whole) for call in message.tool_calls)
    assert one == other
    assert len(whole.tool_calls) == 1


def tools_auto_round_trip(url: str) -> None:
    model = chat_model(url).bind_tools(TOOLS)
    messages: list[Any] = [HumanMessage(ABOUT_WEATHER)]
    called = chat_model(url).bind_tools(TOOLS, tool_choice="any").invoke(messages)
    by_name = {tool.name: tool for tool in TOOLS}
    messages += [called, *(by_name[call["name"]].invoke(call) for call in called.tool_calls)]
    answer = model.invoke(messages)
    assert answer.content or answer.tool_calls
    for call in answer.tool_calls:
        check_call(call["name"], call["args"])
        assert call["id"] not in {earlier["id"] for earlier in called.tool_calls}


def structured_by_tool(url: str) -> None:
    model = chat_model(url).with_structured_output(Person, method="function_calling")
    assert isinstance(model.invoke(ABOUT_PERSON), Person)


def structured_by_schema(url: str) -> None:
    model = chat_model(url).with_structured_output(Person, method="json_schema")
    assert isinstance(model.invoke(ABOUT_PERSON), Person)


def structured_by_schema_streamed(url: str) -> None:
    model = chat_model(url).with_structured_output(Person, method="json_schema")
    *_, last = model.stream(ABOUT_PERSON)
    assert isinstance(last, Person)


def structured_as_any_object(url: str) -> None:
    model = chat_model(url).with_structured_output(None, method="json_mode")
    assert isinstance(model.invoke(ABOUT_PERSON), dict)


def completion(url: str) -> None:
    assert text_model(url).invoke("Once upon a time") != ""


def completion_streamed(url: str) -> None:
    model = text_model(url)
    assert "".join(model.stream("Once upon a time")) == model.invoke("Once upon a time")


def completion_batch(url: str) -> None:
    model = text_model(url, n=2, best_of=2, temperature=1, seed=3)
    result = model.generate(["Once upon a time", "The cat"])
    assert [len(texts) for texts in result.generations] == [2, 2]


def tokens_counted(url: str) -> None:
    """Count with the server's tokenizer, since LangChain's own is downloaded and another model's."""

    def token_ids(text: str) -> list[int]:
        body = json.dumps({"inputs": text}).encode()
        request = urllib.request.Request(f"{url}/tokenize", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return [token["id"] for token in json.load(answer)]

    model = chat_model(url, custom_get_token_ids=token_ids)
    assert model.get_num_tokens("cat") < model.get_num_tokens("The cat sat on the mat.")


def endpoint_text(url: str) -> None:
    assert endpoint(url).invoke("Once upon a time") != ""


def endpoint_streamed(url: str) -> None:
    model = endpoint(url, max_new_tokens=16)
    assert "".join(model.stream("Once upon a time")) == model.invoke("Once upon a time")


def endpoint_stop(url: str) -> None:
    whole = endpoint(url).invoke("Once upon a time")
    end = whole[3:5]
    stopped = endpoint(url).invoke("Once upon a time", stop=[end])
    assert stopped == whole[: whole.index(end)]


def endpoint_every_setting(url: str) -> None:
    settings = {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "typical_p": 0.9, "repetition_penalty": 1.1}
    model = endpoint(url, do_sample=True, truncate=20, watermark=True, return_full_text=True, **settings)
    text = model.invoke("Once upon a time")
    assert text.startswith("Once upon a time")
    assert text == model.invoke("Once upon a time")


def hugging_face_chat(url: str) -> None:
    answer = ChatHuggingFace(llm=endpoint(url)).invoke([HumanMessage(GREETING)])
    assert answer.content != ""
    assert answer.usage_metadata["output_tokens"] > 0


def hugging_face_chat_streamed(url: str) -> None:
    assert gather(ChatHuggingFace(llm=endpoint(url)).stream(GREETING)).content != ""


def hugging_face_tools(url: str) -> None:
    model = ChatHuggingFace(llm=endpoint(url)).bind_tools(TOOLS[:1], tool_choice="get_weather")
    check_calls(model.invoke(ABOUT_WEATHER))


def hugging_face_tools_streamed(url: str) -> None:
    model = ChatHuggingFace(llm=endpoint(url)).bind_tools(TOOLS[:1], tool_choice="get_weather")
    check_calls(gather(model.stream(ABOUT_WEATHER)))


def hugging_face_round_trip(url: str) -> None:
    model = ChatHuggingFace(llm=endpoint(url))
    called = model.bind_tools(TOOLS[:1], tool_choice="get_weather").invoke(ABOUT_WEATHER)
    results = [TOOLS[0].invoke(call) for call in called.tool_calls]
    answer = model.bind_tools(TOOLS).invoke([HumanMessage(ABOUT_WEATHER), called, *results])
    assert answer.content or answer.tool_calls


def hugging_face_structured(url: str) -> None:
    model = ChatHuggingFace(llm=endpoint(url)).with_structured_output(Person, method="json_schema")
    Person.model_validate(model.invoke(ABOUT_PERSON))


CHECKS = (
    *checks(
        "langchain-openai",
        "openai",
        *(chat, chat_streamed, chat_asynchronous, chat_batch, chat_stop, chat_choices, chat_logprobs),
        *(chat_every_setting, refusal, tools_required, tools_named, tools_streamed, tools_auto_round_trip),
        *(structured_by_tool, structured_by_schema, structured_by_schema_streamed, structured_as_any_object),
        *(completion, completion_streamed, completion_batch, tokens_counted),
    ),
    *checks(
        "langchain-huggingface",
        "tgi",
        *(endpoint_text, endpoint_streamed, endpoint_stop, endpoint_every_setting, hugging_face_chat),
        *(
            hugging_face_chat_streamed,
            hugging_face_tools,
            hugging_face_round_trip,
            hugging_face_tools_streamed,
            hugging_face_structured,
        ),
    ),
)
