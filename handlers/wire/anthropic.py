"""Anthropic's Messages: what a body asks for, but for its prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from handlers.wire.blocks import Transcript, to_transcript
from handlers.wire.chat import Chat, echoed
from handlers.wire.client_tools import to_tools
from handlers.wire.conversation import THINKING, Conversation, Counted, effort_of
from handlers.wire.grammar import schema_grammar
from handlers.wire.images import quoted
from handlers.wire.limits import Limits
from handlers.wire.openai import to_parameters
from handlers.wire.parameters import check
from handlers.wire.requests import grammar_or_refusal
from handlers.wire.types import MessagesRequest, MessageTokensRequest, ThinkingConfig
from inference.errors import GrammarRefused, InvalidInput, Member
from inference.types import Grammar

FORMAT, EFFORT = "output_config.format", "output_config.effort"
JSON_SCHEMA = "json_schema"
THINKS = {"enabled": True, "adaptive": True, "disabled": False}


@dataclass(frozen=True, slots=True)
class Asked:
    """A body understood: what is asked of the engine, as of a chat."""

    chat: Chat


def to_asked(body: MessagesRequest, limits: Limits) -> Asked:
    """Understand a body; raise InvalidInput or ToolRefused with the first check that fails."""
    transcript = to_transcript(body["messages"], body.get("system"))
    form = grammar_or_refusal(lambda: _form(body))
    conversation = _conversation(body, transcript)
    most = body.get("max_tokens")
    if most is not None and most < 1:
        raise InvalidInput(Member("max_tokens"), f" must be >= 1. Given: {most}")
    parameters = replace(to_parameters(body, most, limits), stop=tuple(body.get("stop_sequences") or ()))
    check(parameters, limits)
    chat = Chat(
        conversation=conversation.beside(form),
        parameters=parameters,
        grammar=form,
        model=echoed(body.get("model")),
        tells_thoughts=True,
        stream=bool(body.get("stream")),
        without_effect=transcript.unread,
    )
    return Asked(chat)


def to_counted(body: MessageTokensRequest) -> Counted:
    """Understand a body; raise InvalidInput or ToolRefused with the first check that fails."""
    transcript = to_transcript(body["messages"], body.get("system"))
    return Counted(_conversation(body, transcript), transcript.unread, echoed(body.get("model")))


def _conversation(body: MessagesRequest | MessageTokensRequest, transcript: Transcript) -> Conversation:
    tools = to_tools(body)
    variables, effort = (
        body.get("chat_template_kwargs") or {},
        (body.get("output_config") or {}).get("effort"),
    )
    return Conversation(
        messages=transcript.messages,
        images=transcript.images,
        tools=tools,
        tool_prompt=body.get("tool_prompt") or None,
        template_kwargs=variables,
        reasoning_effort=effort_of(effort, variables, EFFORT),
        continue_final=None,
        effort_member=EFFORT,
        thinking=_thinks(body.get("thinking"), variables),
    )


def _thinks(given: ThinkingConfig | None, variables: Mapping[str, object]) -> bool | None:
    """Return whether the model is to think; None leaves it to the template."""
    if given is None:
        return None
    if given["type"] not in THINKS:
        raise InvalidInput(
            Member("thinking.type"), f" is {quoted(given['type'])}, and is one of {', '.join(THINKS)}"
        )
    thinks = THINKS[given["type"]]
    other = next((name for name in THINKING if variables.get(name, thinks) != thinks), None)
    if other is not None:
        raise InvalidInput(
            Member("thinking.type"),
            f" is {given['type']!r} and `chat_template_kwargs.{other}` says otherwise: give one",
        )
    return thinks


def _form(body: MessagesRequest) -> Grammar | None:
    given = (body.get("output_config") or {}).get("format")
    if given is None:
        return None
    if given["type"] != JSON_SCHEMA:
        raise GrammarRefused(
            "grammar is not valid: ",
            Member(f"{FORMAT}.type"),
            f" is {quoted(given['type'])}, and is {JSON_SCHEMA!r}",
        )
    return schema_grammar(given["schema"], f"{FORMAT}.schema")
