"""OpenAI's Responses: what a body asks for, but for its prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from handlers.wire.chat import Chat, echoed
from handlers.wire.conversation import Conversation, Counted, effort_of
from handlers.wire.flat_tools import to_tools, told_choice
from handlers.wire.items import Turns, to_turns
from handlers.wire.limits import Limits
from handlers.wire.offers import Offer, offers_search
from handlers.wire.openai import Stamp, to_parameters
from handlers.wire.parameters import check
from handlers.wire.requests import grammar_or_refusal
from handlers.wire.text_format import to_form, told_format
from handlers.wire.told_tools import told_tools
from handlers.wire.types import InputTokensRequest, ModelResponse, ResponsesRequest
from inference.errors import InvalidInput, Member
from inference.tools.types import ToolUse

EFFORT = "reasoning.effort"
LOGPROBS = "message.output_text.logprobs"
OF_OTHER_ITEMS = (  # what `include` may ask for beside them: parts of items that no answer here has
    *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
    *("message.input_image.image_url", "computer_call_output.output.image_url"),
    *("code_interpreter_call.outputs", "reasoning.encrypted_content"),
)
NAME_CHARACTERS, VALUE_CHARACTERS = 64, 512  # of `metadata`


@dataclass(frozen=True, slots=True)
class Asked:
    """A body understood: what is asked of the engine, as of a chat, and the answer before it has begun."""

    chat: Chat
    body: ResponsesRequest
    offers: Mapping[str, Offer]  # the tools, by the names by which the model calls them

    def blank(self, stamp: Stamp) -> ModelResponse:
        """Return the answer as it is when it is begun."""
        return _blank(self.body, stamp)


def to_asked(body: ResponsesRequest, limits: Limits) -> Asked:
    """Understand a body; raise InvalidInput or ToolRefused with the first check that fails."""
    turns = to_turns(body["input"], body.get("instructions"))
    form = grammar_or_refusal(lambda: to_form(body.get("text"), limits))
    offered = to_tools(body, turns.offered)
    conversation = _conversation(body, turns, offered.use)
    wanted, idle = _included(body)
    top = body.get("top_logprobs") or 0
    if top > limits.max_top_logprobs:
        raise InvalidInput(
            Member("top_logprobs"), f" must be >= 0 and <= {limits.max_top_logprobs}. Given: {top}"
        )
    most = body.get("max_output_tokens")
    if most is not None and most < 1:
        raise InvalidInput(Member("max_output_tokens"), f" must be >= 1. Given: {most}")
    parameters = to_parameters(body, most, limits)
    check(parameters, limits)
    _check_metadata(body.get("metadata") or {})
    chat = Chat(
        conversation=conversation.beside(form),
        parameters=parameters,
        grammar=form,
        model=echoed(body.get("model")),
        tells_thoughts=True,
        stream=bool(body.get("stream")),
        logprobs=wanted,
        top_logprobs=top if wanted else 0,
        without_effect=(
            *idle,
            *(("top_logprobs",) if top and not wanted else ()),
            *_unread(turns),
            *offered.left_out,
        ),
    )
    return Asked(chat, body, offered.by_name)


def to_counted(body: InputTokensRequest) -> Counted:
    """Understand a body; raise InvalidInput or ToolRefused with the first check that fails."""
    turns = to_turns(body["input"], body.get("instructions"))
    offered = to_tools(body, turns.offered)
    return Counted(_conversation(body, turns, offered.use), (*_unread(turns), *offered.left_out))


def _unread(turns: Turns) -> tuple[str, ...]:
    return (*turns.left_out, *(("input[].reasoning",) if turns.has_unread else ()))


def _conversation(
    body: ResponsesRequest | InputTokensRequest, turns: Turns, tools: ToolUse | None
) -> Conversation:
    variables, effort = body.get("chat_template_kwargs") or {}, (body.get("reasoning") or {}).get("effort")
    return Conversation(
        messages=turns.messages,
        images=turns.images,
        tools=tools,
        tool_prompt=body.get("tool_prompt") or None,
        template_kwargs=variables,
        reasoning_effort=effort_of(effort, variables, EFFORT),
        continue_final=bool(body.get("continue_final_message")),
        effort_member=EFFORT,
    )


def _included(body: ResponsesRequest) -> tuple[bool, tuple[str, ...]]:
    """Return whether log-probabilities are asked for, and what `include` has beside them."""
    names = body.get("include") or []
    for place, name in enumerate(names):
        if name not in (LOGPROBS, *OF_OTHER_ITEMS):
            known = ", ".join((LOGPROBS, *OF_OTHER_ITEMS))
            raise InvalidInput(Member(f"include[{place}]"), f" is {name[:80]!r}, and is one of {known}")
    return LOGPROBS in names, tuple(f"include.{name}" for name in names if name != LOGPROBS)


def _check_metadata(metadata: Mapping[str, str]) -> None:
    for name, value in metadata.items():
        if len(name) > NAME_CHARACTERS:
            raise InvalidInput(
                "a name in ",
                Member("metadata"),
                f" must have at most {NAME_CHARACTERS} characters. Given: {len(name)}",
            )
        if len(value) > VALUE_CHARACTERS:
            raise InvalidInput(
                Member(f"metadata.{name}"),
                f" must have at most {VALUE_CHARACTERS} characters. Given: {len(value)}",
            )


def _blank(body: ResponsesRequest, stamp: Stamp) -> ModelResponse:
    temperature, top_p = body.get("temperature"), body.get("top_p")
    return {
        "object": "response",
        "id": stamp.id,
        "created_at": stamp.created,
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "background": False,
        "store": False,
        "previous_response_id": None,
        "model": stamp.model,
        "instructions": body.get("instructions"),
        "output": [],
        "usage": None,
        "max_output_tokens": body.get("max_output_tokens"),
        "temperature": 1.0 if temperature is None else temperature,
        "top_p": 1.0 if top_p is None else top_p,
        "top_logprobs": body.get("top_logprobs") or 0,
        "text": {"format": told_format(body.get("text"))},
        "reasoning": {"effort": (body.get("reasoning") or {}).get("effort"), "summary": None},
        "tools": told_tools(body.get("tools") or ()),
        "tool_choice": told_choice(body.get("tool_choice"), searches=offers_search(body.get("tools") or ())),
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "truncation": "disabled",
        "metadata": body.get("metadata") or {},
    }
