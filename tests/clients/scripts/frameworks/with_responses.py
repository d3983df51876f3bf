"""OpenAI's Responses as frameworks speak them: LangChain's `use_responses_api`, and the Agents SDK."""

from __future__ import annotations

import asyncio
from functools import reduce
from operator import add
from typing import Any

from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from checking import checks
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from subjects import ABOUT_PERSON, ABOUT_WEATHER, FUNCTIONS, GREETING, MODEL, PARAMETERS, Person, check_call

TOOLS = [
    StructuredTool.from_function(function, args_schema=PARAMETERS[name])
    for name, function in FUNCTIONS.items()
]
asked: list[str] = []  # cities whose weather an agent asked for


def chat_model(url: str, **settings: Any) -> ChatOpenAI:
    settings = {"temperature": 0, "max_tokens": 80, "max_retries": 0, **settings}
    return ChatOpenAI(base_url=f"{url}/v1", api_key="-", model=MODEL, use_responses_api=True, **settings)


def text(url: str) -> None:
    messages = [SystemMessage("You are a helpful assistant."), HumanMessage(GREETING)]
    answer = chat_model(url).invoke(messages)
    assert answer.text != ""
    assert answer.usage_metadata["output_tokens"] > 0


def text_streamed(url: str) -> None:
    model = chat_model(url)
    streamed = reduce(add, model.stream(GREETING))
    assert streamed.text == model.invoke(GREETING).text != ""


def tools_round_trip(url: str) -> None:
    messages: list[Any] = [HumanMessage(ABOUT_WEATHER)]
    called = chat_model(url).bind_tools(TOOLS, tool_choice="any").invoke(messages)
    assert called.tool_calls
    for call in called.tool_calls:
        check_call(call["name"], call["args"])
    by_name = {tool.name: tool for tool in TOOLS}
    messages += [called, *(by_name[call["name"]].invoke(call) for call in called.tool_calls)]
    answer = chat_model(url).bind_tools(TOOLS).invoke(messages)
    assert answer.text or answer.tool_calls


def tools_streamed(url: str) -> None:
    model = chat_model(url).bind_tools(TOOLS, tool_choice="any", parallel_tool_calls=False)
    streamed = reduce(add, model.stream(ABOUT_WEATHER))
    assert [call["args"] for call in streamed.tool_calls] == [
        call["args"] for call in model.invoke(ABOUT_WEATHER).tool_calls
    ]


def structured(url: str) -> None:
    model = chat_model(url).with_structured_output(Person, method="json_schema")
    assert isinstance(model.invoke(ABOUT_PERSON), Person)


@function_tool
def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    asked.append(city)
    return "3 degrees, rain"


def agent(url: str, **settings: Any) -> Agent[Any]:
    set_tracing_disabled(True)
    model = OpenAIResponsesModel(MODEL, AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0))
    chosen = {"tool_choice": "auto", **settings.pop("model_settings", {})}
    return Agent(
        name="Clerk",
        instructions="You are a helpful assistant.",
        model=model,
        model_settings=ModelSettings(temperature=0, max_tokens=100, **chosen),
        **settings,
    )


def agent_answers(url: str) -> None:
    result = Runner.run_sync(agent(url), GREETING)
    assert result.final_output != ""


def agent_calls_a_tool(url: str) -> None:
    asked.clear()
    clerk = agent(url, tools=[get_weather], model_settings={"tool_choice": "required"})
    result = Runner.run_sync(clerk, ABOUT_WEATHER, max_turns=4)
    assert asked
    assert result.final_output != ""


def agent_streams(url: str) -> None:
    async def run() -> Any:
        result = Runner.run_streamed(agent(url, tools=[get_weather]), GREETING)
        async for _ in result.stream_events():
            pass
        return result.final_output

    assert asyncio.run(run()) != ""


def agent_answers_in_a_form_beside_a_tool(url: str) -> None:
    result = Runner.run_sync(agent(url, tools=[get_weather], output_type=Person), ABOUT_PERSON, max_turns=4)
    assert isinstance(result.final_output, Person)


CHECKS = (
    *checks(
        "langchain-openai",
        "openai",
        *(text, text_streamed, tools_round_trip, tools_streamed, structured),
    ),
    *checks(
        "openai-agents",
        "openai",
        *(agent_answers, agent_calls_a_tool, agent_streams, agent_answers_in_a_form_beside_a_tool),
    ),
)
