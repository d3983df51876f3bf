"""Chat templates: where a model keeps them, and how messages become a prompt."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from inference.config import TEMPLATE_CHARACTERS, ModelConfig
from inference.errors import InvalidInput, Member, ModelUnavailable, TemplateFailed
from inference.text.contents import ContentHabits, Images, probe_contents
from inference.text.files import ModelFiles, named_tokens, read_json, read_text
from inference.text.roles import RoleHabits, probe_roles
from inference.text.sandbox import Clock
from inference.text.template import RENDER_SECONDS, ChatJinja
from inference.tools.habits import REASONING, Habits, Message, probe
from inference.types import Messages

log = logging.getLogger(__name__)

DEFAULT = "default"
TOOL_USE = "tool_use"
CONTINUE_HERE = "<continue-here-9f3b6c1d>"  # marks the end of the text that the model goes on with
PROBE_SECONDS = 0.5  # for each of the texts that a template is asked for to know its habits


@dataclass(frozen=True, slots=True)
class Compiled:
    """A template with what it does with tools and roles, and what contents it takes."""

    jinja: ChatJinja
    habits: Habits
    contents: ContentHabits
    roles: RoleHabits


class ChatTemplate:
    """A model's chat templates, compiled, by name; every method can be called from any thread."""

    def __init__(
        self,
        sources: Mapping[str, object],
        tokens: Mapping[str, str],
        *,
        clock: Clock = datetime.now,
        seconds: float = RENDER_SECONDS,
        characters: int = TEMPLATE_CHARACTERS,
    ) -> None:
        """`seconds` are what one rendering may take, `characters` what it may come to."""
        self._seconds, self._characters = seconds, characters
        self._tokens = tokens  # {"bos_token": "<s>", ...}: what templates write
        self._compiled = {name: self._compile(source, clock) for name, source in sources.items()}

    @property
    def names(self) -> frozenset[str]:
        """Return the variables that the templates may read."""
        compiled = [template for template in self._compiled.values() if isinstance(template, Compiled)]
        return frozenset[str]().union(*(template.jinja.names for template in compiled))

    @property
    def texts(self) -> tuple[str, ...]:
        """Return what the templates write, in pieces."""
        compiled = [template for template in self._compiled.values() if isinstance(template, Compiled)]
        return tuple(text for template in compiled for text in template.jinja.texts)

    def habits(self, *, has_tools: bool) -> Habits:
        """Return what the template does with tools, calls and results; raise TemplateFailed."""
        return self._template(has_tools=has_tools).habits

    def roles(self, *, has_tools: bool) -> RoleHabits:
        """Return what the template does with roles that not all know; raise TemplateFailed."""
        return self._template(has_tools=has_tools).roles

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        template_kwargs: Mapping[str, object] | None = None,
        continue_final: bool | None = None,
        images: Images | None = None,
    ) -> str:
        """Return the prompt; raise TemplateFailed.

        It ends where the assistant's turn begins, or right after the last message's content, so that
        the model goes on with it: with `continue_final` if that is possible, which else raises
        InvalidInput; without it never; and if it is None, when the last message is the assistant's
        and has words but no calls. The messages' contents are texts, with the marks of `images` in them.
        """
        images = images or Images()
        template = self._template(has_tools=bool(tools))
        context = self._context(tools, template_kwargs or {})
        chat = plain_chat(messages)
        marked = None if continue_final is False else mark_end(chat)
        if marked is not None:
            rendered = self._rendered(template, context, marked, images)
            prompt, found, _ = rendered.rpartition(CONTINUE_HERE)
            if found:
                return prompt.replace(CONTINUE_HERE, "").rstrip()  # as TGI; a template may write a text twice
        if continue_final:
            raise cannot_continue(chat)
        # Nothing to go on with, or the template leaves it out
        return self._rendered(template, context, chat, images)

    def _rendered(
        self, template: Compiled, context: Mapping[str, object], chat: list[dict[str, Any]], images: Images
    ) -> str:
        """Return the prompt of messages, in the form that the template takes them in."""

        def render(shown: list[dict[str, Any]]) -> str:
            whole = {**context, "messages": shown}
            return template.jinja.render(whole, seconds=self._seconds, characters=self._characters)

        if images.marks.count and template.contents.images:
            prompt = render(images.as_parts(chat))
            if images.shown_in(prompt):
                return prompt
        texts = images.in_texts(chat)
        prompt = render(texts if template.contents.texts else images.as_parts(texts))
        if not images.shown_in(prompt):
            raise images.complaint(prompt)
        return prompt

    def _compile(self, source: object, clock: Clock) -> Compiled | TemplateFailed:
        jinja = compiled_or_failure(source, clock)
        if isinstance(jinja, TemplateFailed):
            return jinja

        def render(messages: Sequence[Message], tools: Sequence[Message] | None = None) -> str:
            context = self._context(tools, {}) | {"messages": plain_chat(messages)}
            return jinja.render(context, seconds=PROBE_SECONDS)

        def render_parts(messages: Sequence[Message], tools: Sequence[Message] | None = None) -> str:
            return render(Images().as_parts(messages), tools)

        contents = probe_contents(render)
        taken = render if contents.texts else render_parts
        return Compiled(jinja, probe(taken), contents, probe_roles(taken, jinja.constants))

    def _context(
        self, tools: Sequence[Mapping[str, object]] | None, template_kwargs: Mapping[str, object]
    ) -> dict[str, object]:
        for name in ("messages", "tools"):
            if name in template_kwargs:
                raise TemplateFailed(
                    Member("chat_template_kwargs"), f" can't set `{name}`: it is a member of the request"
                )
        return {
            **self._tokens,
            "add_generation_prompt": True,
            "documents": None,
            **plain(template_kwargs),
            "tools": plain(tools) if tools else None,
        }

    def _template(self, *, has_tools: bool) -> Compiled:
        name = TOOL_USE if has_tools and TOOL_USE in self._compiled else DEFAULT
        template = self._compiled.get(name)
        if template is None:
            raise TemplateFailed("template not found")
        if isinstance(template, TemplateFailed):
            raise TemplateFailed(str(template))
        return template


def load_chat_template(
    files: ModelFiles,
    config: ModelConfig,
    *,
    seconds: float = RENDER_SECONDS,
    characters: int = TEMPLATE_CHARACTERS,
) -> ChatTemplate:
    """Find the model's templates; a broken one is reported when it is used.

    The file of `tokenizer_config_path` comes first, then chat_template.jinja, chat_template.json,
    tokenizer_config.json and processor_config.json. `seconds` are what one rendering may take,
    `characters` what it may come to.
    """
    tokenizer_config = files.json("tokenizer_config.json")
    given: dict[str, Any] = {}
    if config.tokenizer_config_path is not None:
        given = _given(Path(config.tokenizer_config_path))
        tokenizer_config = tokenizer_config | given
    candidates = (
        given.get("chat_template"),
        jinja_files(files),
        files.json("chat_template.json").get("chat_template"),
        tokenizer_config.get("chat_template"),
        files.json("processor_config.json").get("chat_template"),
    )
    sources = next((named for named in map(by_name, candidates) if named), {})
    return ChatTemplate(
        sources, named_tokens(files, tokenizer_config), seconds=seconds, characters=characters
    )


def _given(path: Path) -> dict[str, Any]:
    """Return what is in the file of `tokenizer_config_path`, a template by itself among the others."""
    try:
        given = {"chat_template": read_text(path)} if path.suffix == ".jinja" else read_json(path)
    except ModelUnavailable as error:
        instead = "give another file by --tokenizer-config-path, or leave it out"
        raise ModelUnavailable(f"`tokenizer_config_path`: {error}; {instead}") from error
    if not by_name(given.get("chat_template")):
        log.warning("`tokenizer_config_path`: %s has no `chat_template`, so the model's own stays", path)
        given.pop("chat_template", None)  # a null, which would hide the model's own
    return given


def compiled_or_failure(source: object, clock: Clock) -> ChatJinja | TemplateFailed:
    """Compile a template; what is wrong with a broken one is told to whoever uses it.

    A model that can't chat still completes prompts.
    """
    try:
        if not isinstance(source, str):
            raise TemplateFailed("the chat template must be a text, in a list with its `name`")
        return ChatJinja(source, clock=clock)
    except TemplateFailed as error:
        log.warning("the chat template is broken, chat requests will be refused: %s", error)
        return error


def jinja_files(files: ModelFiles) -> dict[str, str] | None:
    """Return the templates that are files of their own, as newer repositories have them."""
    default = files.text("chat_template.jinja")
    if default is None:
        return None
    more = sorted(files.directory.glob("additional_chat_templates/*.jinja"))
    return {path.stem: read_text(path) for path in more} | {DEFAULT: default}


def by_name(templates: object) -> dict[str, object]:
    """Return templates by name from any of the forms in which they are written.

    One without a name, or without a template, stands for a broken default.
    """
    if isinstance(templates, str):
        return {DEFAULT: templates}
    if isinstance(templates, Mapping):
        return dict(templates)
    if not isinstance(templates, list):
        return {}
    named: dict[str, object] = {}
    for entry in templates:
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
            named[entry["name"]] = entry.get("template")
        else:
            named.setdefault(DEFAULT, None)
    if DEFAULT not in named and len(named) == 1:
        named[DEFAULT] = next(iter(named.values()))
    return named


def plain_chat(messages: Messages) -> list[dict[str, Any]]:
    """Return messages as templates expect them; raise TemplateFailed where one is nested too deeply."""
    try:
        return [plain_message(message) for message in messages]
    except RecursionError:
        raise TemplateFailed("a message is nested too deeply: send flatter tool calls") from None


def plain_message(message: Mapping[str, object]) -> dict[str, Any]:
    """Return a message as templates expect it: plain data, its reasoning under every usual name."""
    chat: dict[str, Any] = plain(message)
    reasoning = next((chat[name] for name in REASONING if chat.get(name) is not None), None)
    if reasoning is None:
        return chat
    return {"thinking": reasoning, **chat, "reasoning_content": reasoning}


def plain(value: Any) -> Any:
    """Copy data into dicts and lists, so that a template can change nothing of ours."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def mark_end(chat: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Return the messages with the end of the assistant's last text marked, or None without one."""
    if not chat or chat[-1].get("role") != "assistant" or chat[-1].get("tool_calls"):
        return None
    *before, last = chat
    content = last.get("content")
    if isinstance(content, str) and content:
        return [*before, last | {"content": content + CONTINUE_HERE}]
    if not isinstance(content, list):
        return None
    for at in range(len(content) - 1, -1, -1):
        part = content[at]
        if isinstance(part, dict) and part.get("text"):
            parts = [*content[:at], part | {"text": part["text"] + CONTINUE_HERE}, *content[at + 1 :]]
            return [*before, last | {"content": parts}]
    return None


def cannot_continue(chat: list[dict[str, Any]]) -> InvalidInput:
    """Return the error for a last message that can't be gone on with."""
    member = Member("continue_final_message")
    if not chat or chat[-1].get("role") != "assistant":
        role = repr(chat[-1].get("role")) if chat else "missing"
        return InvalidInput(
            member,
            f" needs a last message with the role 'assistant' to go on with. The last one's role: {role}",
        )
    if chat[-1].get("tool_calls"):
        calls = Member("messages[].tool_calls", "a message that has `tool_calls`: leave them out")
        return InvalidInput(member, " can't go on with ", calls)
    if not chat[-1].get("content"):
        return InvalidInput(member, " needs words to go on with: the last message's `content` is empty")
    return InvalidInput(member, " isn't possible: the chat template leaves out the last message's words")
