"""What a chat template makes a prompt of: messages, tools, and variables of the client's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from handlers.wire.images import ImageUrl
from handlers.wire.messages import to_template
from handlers.wire.requests import Wanted
from handlers.wire.tools import to_tools
from handlers.wire.types import ChatRequest, ChatTokenizeRequest
from inference.errors import InvalidInput, Member
from inference.tools.prompt import leaves_thought_open
from inference.tools.types import ToolUse
from inference.types import Messages

Turn: TypeAlias = Mapping[str, object]  # a message as templates want it
Body: TypeAlias = ChatRequest | ChatTokenizeRequest

THINKING = ("enable_thinking", "thinking")  # what templates call the variable that has a model think


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The members of a chat body that shape its prompt."""

    messages: Messages
    images: tuple[ImageUrl, ...]  # in the messages, in order
    tools: ToolUse | None
    tool_prompt: str | None  # None: the built-in one
    template_kwargs: Mapping[str, object]
    reasoning_effort: str | None
    continue_final: bool | None  # None: a last message of the assistant is continued, as in TGI
    effort_member: str = "reasoning_effort"  # that the request has it in
    thinking: bool | None = None  # None: as the template has it
    left_out: tuple[str, ...] = ()  # what calls can't be held to

    @property
    def variables(self) -> Mapping[str, object]:
        """Return the template's variables that the client set."""
        effort, thinking = self.reasoning_effort, self.thinking
        return {
            **({} if thinking is None else dict.fromkeys(THINKING, thinking)),
            **self.template_kwargs,
            **({} if effort is None else {"reasoning_effort": effort}),
        }

    def beside(self, form: Wanted) -> Conversation:
        """Return the conversation where words have a form, or None: then they are told from calls by it."""
        return replace(self, tools=self.tools and replace(self.tools, formed=form is not None))

    def answering(self, prompt: str) -> Conversation:
        """Return the conversation as the answer to its prompt goes on with it."""
        if self.tools is None or not leaves_thought_open(prompt):
            return self
        return replace(self, tools=replace(self.tools, thinking=True))

    def ending(self, prompt: str) -> Turn | None:
        """Return the last message if a prompt ends with its text."""
        last: Turn = self.messages[-1] if self.messages else {}
        content = last.get("content")
        text = content.rstrip() if isinstance(content, str) else ""
        return last if text and prompt.rstrip().endswith(text) else None

    def without_effect(self, known: frozenset[str]) -> tuple[str, ...]:
        """Return the members that change nothing here, and those that calls can't be held to.

        They are variables that the template doesn't mention, and a prompt for tools where none may be called.
        """
        names = [*self.left_out]
        names += [f"chat_template_kwargs.{name}" for name in self.template_kwargs if name not in known]
        if self.reasoning_effort is not None and "reasoning_effort" not in known:
            names.append(self.effort_member)
        if self.thinking is not None and known.isdisjoint(THINKING):
            names.append("thinking")
        if self.tool_prompt is not None and self.tools is None:
            names.append("tool_prompt")
        return tuple(names)


@dataclass(frozen=True, slots=True)
class Counted:
    """A body understood whose conversation is to be counted."""

    conversation: Conversation
    without_effect: tuple[str, ...]
    model: str | None = None  # that would answer; None: the served one


def to_conversation(body: Body) -> Conversation:
    """Understand what a body says of its prompt; raise InvalidInput or ToolRefused."""
    messages, images = to_template(body["messages"])
    offered = to_tools(body)
    variables = body.get("chat_template_kwargs") or {}
    return Conversation(
        messages=messages,
        images=images,
        tools=offered.use,
        left_out=offered.left_out,
        tool_prompt=body.get("tool_prompt") or None,
        template_kwargs=variables,
        reasoning_effort=effort_of(body.get("reasoning_effort"), variables, "reasoning_effort"),
        continue_final=body.get("continue_final_message"),
    )


def effort_of(given: str | None, variables: Mapping[str, object], member: str) -> str | None:
    """Return how hard the model is to think, as `member` says; raise InvalidInput if a variable differs."""
    if given is not None and variables.get("reasoning_effort", given) != given:
        raise InvalidInput(
            Member(member),
            f" is {given!r} and `chat_template_kwargs.reasoning_effort` is not: they mean the same, give one",
        )
    return given
