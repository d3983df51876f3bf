"""Conversations, and the prompts that the model's chat template makes of them."""

from __future__ import annotations

from functools import partial

from handlers.http.aside import Aside
from handlers.http.support import ignored_header
from handlers.service import Service
from handlers.wire.conversation import Conversation
from handlers.wire.limits import Limits
from inference.frontend.client import EngineClient
from inference.tools.grammar import check_strict


async def check_tools(conversation: Conversation, limits: Limits, aside: Aside) -> None:
    """Raise GrammarRefused for a strict tool that no grammar can express where no answer follows one."""
    tools = conversation.tools
    if tools is not None and any(tool.strict for tool in tools.tools):
        await aside.on_thread(partial(check_strict, tools, limits.of_schema))


async def render(engine: EngineClient, conversation: Conversation) -> str:
    """Return the prompt; raise TemplateFailed, InvalidInput or NotReady."""
    return await engine.render_chat(
        conversation.messages,
        tools=conversation.tools,
        tool_prompt=conversation.tool_prompt,
        template_kwargs=conversation.variables,
        continue_final=conversation.continue_final,
    )


def unknown_model(model: str | None, service: Service) -> tuple[str, ...]:
    """Return what to say of a model's name that is no adapter's, where there are some: one may be meant."""
    adapters = service.adapters
    known = model in (None, service.engine.model.id) or model in adapters
    return () if known or not adapters else ("model",)


def ignored_headers(
    engine: EngineClient, conversation: Conversation, more: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return the header that names what has no effect: variables the template doesn't mention, and `more`."""
    names = (*conversation.without_effect(engine.template_names), *more)
    return ignored_header(names)
