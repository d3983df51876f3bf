"""LlamaIndex: `OpenAILike` on OpenAI's API, `HuggingFaceInferenceAPI` on TGI's."""

from __future__ import annotations

import asyncio
from typing import Any

from checking import checks
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.huggingface_api import HuggingFaceInferenceAPI
from llama_index.llms.openai_like import OpenAILike
from subjects import ABOUT_PERSON, ABOUT_WEATHER, GREETING, MODEL, Person, check_call, get_time, get_weather

CONTEXT = 1024
TOOLS = [FunctionTool.from_defaults(get_weather), FunctionTool.from_defaults(get_time)]
MESSAGES = [
    ChatMessage(role="system", content="You are a helpful assistant."),
    ChatMessage(role="user", content=GREETING),
]


def chat_model(url: str, **settings: Any) -> OpenAILike:
    """Return the model in its chat mode, with tools."""
    settings = {"is_chat_model": True, "is_function_calling_model": True, **settings}
    return text_model(url, **{"max_tokens": 80, **settings})


def text_model(url: str, **settings: Any) -> OpenAILike:
    settings = {"temperature": 0, "max_tokens": 16, "max_retries": 0, **settings}
    return OpenAILike(model=MODEL, api_base=f"{url}/v1", api_key="-", context_window=CONTEXT, **settings)


def hugging_face(url: str, **settings: Any) -> HuggingFaceInferenceAPI:
    return HuggingFaceInferenceAPI(model_name=url, num_output=16, context_window=CONTEXT, **settings)


def check_selections(selections: list[Any]) -> None:
    assert selections
    for selection in selections:
        check_call(selection.tool_name, selection.tool_kwargs)


def completed(url: str) -> None:
    assert text_model(url).complete("Once upon a time").text != ""


def completed_while_streamed(url: str) -> None:
    model = text_model(url)
    streamed = "".join(part.delta or "" for part in model.stream_complete("Once upon a time"))
    assert streamed == model.complete("Once upon a time").text


def chat(url: str) -> None:
    answer = chat_model(url).chat(MESSAGES)
    assert answer.message.content != ""
    assert answer.raw.usage.completion_tokens > 0


def chat_streamed(url: str) -> None:
    model = chat_model(url)
    streamed = "".join(part.delta or "" for part in model.stream_chat(MESSAGES))
    assert streamed == model.chat(MESSAGES).message.content


def chat_asynchronous(url: str) -> None:
    assert asyncio.run(chat_model(url).achat(MESSAGES)).message.content != ""


def chat_stop(url: str) -> None:
    whole = chat_model(url).chat(MESSAGES).message.content
    end = whole[2:4]
    assert chat_model(url).chat(MESSAGES, stop=[end]).message.content == whole[: whole.index(end)]


def chat_logprobs(url: str) -> None:
    answer = chat_model(url, logprobs=True, top_logprobs=2, max_tokens=5).chat(MESSAGES)
    assert answer.logprobs
    assert all(len(alternatives) == 2 for alternatives in answer.logprobs)


def tools_chosen(url: str) -> None:
    model = chat_model(url)
    answer = model.chat_with_tools(TOOLS, user_msg=ABOUT_WEATHER, tool_required=True)
    check_selections(model.get_tool_calls_from_response(answer))


def tools_chosen_while_streamed(url: str) -> None:
    model = chat_model(url)
    *_, last = model.stream_chat_with_tools(TOOLS, user_msg=ABOUT_WEATHER, tool_required=True)
    check_selections(model.get_tool_calls_from_response(last))


def tools_several(url: str) -> None:
    model = chat_model(url)
    answer = model.chat_with_tools(TOOLS, ABOUT_WEATHER, tool_required=True, allow_parallel_tool_calls=True)
    check_selections(model.get_tool_calls_from_response(answer))


def tool_called(url: str) -> None:
    answer = chat_model(url).predict_and_call(
        TOOLS, ABOUT_WEATHER, tool_required=True, error_on_no_tool_call=True
    )
    assert answer.sources[0].raw_output


def structured_by_tool(url: str) -> None:
    answer = chat_model(url).structured_predict(Person, PromptTemplate(ABOUT_PERSON))
    assert isinstance(answer, Person)


def schema_model(url: str) -> OpenAILike:
    return chat_model(url, should_use_structured_outputs=True, is_function_calling_model=False)


def structured_by_schema(url: str) -> None:
    assert isinstance(schema_model(url).as_structured_llm(Person).complete(ABOUT_PERSON).raw, Person)


def structured_by_schema_streamed(url: str) -> None:
    """Watch an object grow; with tools, LlamaIndex lets a streaming model choose whether it calls one."""
    *_, last = schema_model(url).stream_structured_predict(Person, PromptTemplate(ABOUT_PERSON))
    assert isinstance(last, Person)


def agent(url: str) -> None:
    """Let the agent's loop ask, call tools and answer, streaming; then the same in whole answers."""

    async def ask(streaming: bool) -> Any:
        model = chat_model(url)
        return await FunctionAgent(tools=TOOLS[:1], llm=model, streaming=streaming).run(ABOUT_WEATHER)

    for streaming in (True, False):
        answer = asyncio.run(ask(streaming))
        assert answer.response.content != ""
        for call in answer.tool_calls:
            check_call(call.tool_name, call.tool_kwargs)
            assert not call.tool_output.is_error, call.tool_output


def conversation(url: str) -> None:
    assert hugging_face(url).chat(MESSAGES).message.content != ""


def conversation_streamed(url: str) -> None:
    assert "".join(part.delta for part in hugging_face(url).stream_chat(MESSAGES)) != ""


def conversation_asynchronous(url: str) -> None:
    assert asyncio.run(hugging_face(url).achat(MESSAGES)).message.content != ""


def text_generation(url: str) -> None:
    assert hugging_face(url, task="text-generation").complete("Once upon a time").text != ""


def text_generation_streamed(url: str) -> None:
    model = hugging_face(url, task="text-generation")
    assert "".join(part.delta for part in model.stream_complete("Once upon a time")) != ""


CHECKS = (
    *checks(
        "llama-index-llms-openai-like",
        "openai",
        *(
            completed,
            completed_while_streamed,
            chat,
            chat_streamed,
            chat_asynchronous,
            chat_stop,
            chat_logprobs,
        ),
        *(tools_chosen, tools_chosen_while_streamed, tools_several, tool_called, agent),
        *(structured_by_tool, structured_by_schema, structured_by_schema_streamed),
    ),
    *checks(
        "llama-index-llms-huggingface-api",
        "tgi",
        *(conversation, conversation_streamed, conversation_asynchronous),
        *(text_generation, text_generation_streamed),
    ),
)
