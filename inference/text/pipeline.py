"""Everything between text and token ids for one model: tokenizer, chat template, threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from inference.config import TEMPLATE_CHARACTERS, ModelConfig
from inference.errors import GenerationFailed, InvalidInput, Member, TemplateFailed
from inference.ipc.grammar_tokens import GrammarTokens
from inference.stop import StopMatcher, Stops
from inference.text.chat_template import ChatTemplate, load_chat_template
from inference.text.contents import Images
from inference.text.encodings import Encodings
from inference.text.files import find_files
from inference.text.lanes import Lanes, size_of
from inference.text.roles import with_known_roles
from inference.text.sequence import SequenceText
from inference.text.template import RENDER_SECONDS
from inference.text.tokenizer import TextTokenizer, load_tokenizer
from inference.thoughts.formats import CHANNELS_SIGN, TagFormat, ThoughtFormat
from inference.thoughts.formats import detect as detect_thoughts
from inference.thoughts.splitters import splitter_of
from inference.thoughts.stops import AnswerStops
from inference.thoughts.types import Splitter, ThoughtUse
from inference.tools.formats import ToolFormat, with_tokens
from inference.tools.history import fit
from inference.tools.known_formats import GENERIC, detect
from inference.tools.opening import Opening
from inference.tools.prompt import template_tools, with_tool_prompt
from inference.tools.stops import WordStops
from inference.tools.types import ToolUse
from inference.types import Messages, TextToken, VisionInfo

if TYPE_CHECKING:
    from inference.grammar.compiler import GrammarCompiler

log = logging.getLogger(__name__)

Result = TypeVar("Result")

INLINE_CHARACTERS = 512  # encodes in less time than the way to a thread and back takes
TOKEN_CHARACTERS = 4  # of a token's text, about


class TokenizerPool:
    """A tokenizer behind threads, so that a long text never holds up the event loop."""

    def __init__(self, tokenizer: TextTokenizer, workers: int) -> None:
        self.tokenizer = tokenizer
        self._lanes = Lanes(workers)
        self._encodings = Encodings()

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text; raise InvalidInput for what is not Unicode text, or Overloaded."""
        if len(text) <= INLINE_CHARACTERS:
            return contained(lambda: self._encode(text, add_special_tokens))()

        async def encode() -> list[int]:
            return await self.run(lambda: self._encode(text, add_special_tokens), len(text))

        return await self._encodings.get(text, add_special_tokens, encode)

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> Sequence[TextToken]:
        """Return the tokens of a text; raise InvalidInput for what is not Unicode text, or Overloaded."""
        if len(text) <= INLINE_CHARACTERS:
            return contained(lambda: self._tokenize(text, add_special_tokens))()
        return await self.run(lambda: self._tokenize(text, add_special_tokens), len(text))

    async def run(self, work: Callable[[], Result], size: int) -> Result:
        """Return what `work` on `size` characters returns, run on one of the threads; raise Overloaded."""
        return await self._lanes.run(contained(work), size)

    def close(self) -> None:
        """Drop what is queued and let the threads end."""
        self._lanes.close()

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        refuse_surrogates(text)
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _tokenize(self, text: str, add_special_tokens: bool) -> Sequence[TextToken]:
        refuse_surrogates(text)
        return self.tokenizer.tokenize(text, add_special_tokens=add_special_tokens)


class TextPipeline:
    """A model's text side; used on the event loop, works on threads."""

    def __init__(self, tokenizer: TextTokenizer, template: ChatTemplate, *, workers: int) -> None:
        self._pool = TokenizerPool(tokenizer, workers)
        self._tokenizer = tokenizer
        self._template = template
        self.special_ids = tokenizer.special_ids
        self.vocabulary_size = tokenizer.vocabulary_size
        self.longest_token = tokenizer.longest_token
        special = special_tokens(tokenizer)
        self.tool_format = tool_format(template, special)
        self.thought_format = thought_format(template, self.tool_format, special)
        if isinstance(self.thought_format, TagFormat):
            self.tool_format = replace(self.tool_format, thought_end=self.thought_format.closing)
        self.template_names = template.names  # of the variables that the chat template may read

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text; raise InvalidInput, or Overloaded if too many long ones wait."""
        return await self._pool.encode(text, add_special_tokens=add_special_tokens)

    async def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens' included; raise Overloaded."""
        return await self._pool.run(lambda: self._tokenizer.decode(ids), len(ids) * TOKEN_CHARACTERS)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> Sequence[TextToken]:
        """Return the tokens of a text with their places; raise InvalidInput or Overloaded."""
        return await self._pool.tokenize(text, add_special_tokens=add_special_tokens)

    async def render_chat(
        self,
        messages: Messages,
        *,
        tools: ToolUse | None = None,
        tool_prompt: str | None = None,
        template_kwargs: Mapping[str, object] | None = None,
        continue_final: bool | None = None,
        vision: VisionInfo | None = None,
    ) -> str:
        """Return the prompt for a conversation; raise TemplateFailed, InvalidInput or Overloaded.

        `vision` says how prompts have images, which messages have in lists of parts. `tool_prompt` is the
        client's word on how to use the tools, None or "" for none. For `continue_final` see
        `ChatTemplate.render`.
        """

        def render() -> str:
            habits = self._template.habits(has_tools=tools is not None)
            images = Images(vision=vision)
            known = with_known_roles(messages, self._template.roles(has_tools=tools is not None))
            chat = fit(images.marks.write(known), habits, self.tool_format)
            images.marks.check_order(chat)
            shown = None
            if tools is not None:
                chat = with_tool_prompt(chat, tools, tool_prompt, self.tool_format, shown=habits.shows_tools)
                shown = template_tools(tools.tools, habits)
            return self._template.render(
                chat,
                tools=shown,
                template_kwargs=template_kwargs,
                continue_final=continue_final,
                images=images,
            )

        shapes = () if tools is None else [(tool.description, tool.shown) for tool in tools.tools]
        size = size_of(messages, shapes, tool_prompt, template_kwargs)
        try:
            return await self._pool.run(render, size)
        except RecursionError:
            raise TemplateFailed(
                Member("messages", only_named=True),
                ", `tools` or `chat_template_kwargs` are nested too deeply: send flatter ones",
            ) from None
        except TemplateFailed as failure:
            if messages:
                raise
            # Some templates take none, and are TGI's users' to use so
            empty = ("; ", Member("messages"), " is empty: send at least one")
            raise TemplateFailed(*failure.args, *empty) from None

    def grammar_compiler(self, tokens: GrammarTokens, *, apart: bool) -> GrammarCompiler:
        """Return what compiles grammars for this model's tokens: `apart`, none of them in this process."""
        # Takes a while to import, and no server without grammars needs it
        from inference.grammar.compiler import GrammarCompiler

        if apart:
            from inference.grammar.forked import ForkedMaker

            return GrammarCompiler(ForkedMaker(tokens))
        from inference.grammar.maker import MakerHere
        from inference.grammar.vocabulary import GrammarVocabulary

        return GrammarCompiler(MakerHere(GrammarVocabulary.of(tokens)))

    def grammar_tokens(self, eos_token_ids: tuple[int, ...]) -> GrammarTokens | None:
        """Return what grammars must know of this model's tokens; None where tokens have no bytes."""
        if self.token_bytes is None:
            return None
        return GrammarTokens(tuple(self.token_bytes), tuple(sorted(self.special_ids)), eos_token_ids)

    @cached_property
    def token_bytes(self) -> Sequence[bytes] | None:
        """Return what each id adds to the UTF-8 of a text; None where that depends on its neighbours."""
        return self._tokenizer.token_bytes()

    def token_text(self, token_id: int) -> str:
        """Return the text of a token by itself."""
        return self._tokenizer.token_text(token_id)

    def sequence(
        self,
        prompt_ids: Sequence[int],
        stops: Sequence[str],
        tools: ToolUse | None = None,
        thoughts: ThoughtUse | None = None,
    ) -> SequenceText:
        """Return what collects the text of the tokens behind a prompt.

        No stop ends a call of `tools`, or one of `thoughts`.
        """
        matcher: Stops | None = None
        if stops and tools is not None and self.tool_format.channels is None:
            matcher = WordStops(stops, Opening(self.tool_format, tools))
        if stops and thoughts is not None:
            matcher = AnswerStops(matcher or StopMatcher(stops), self.splitter(thoughts, tools))
        return SequenceText(self._tokenizer.stream(prompt_ids), stops, self._tokenizer.token_text, matcher)

    def splitter(self, thoughts: ThoughtUse, tools: ToolUse | None) -> Splitter:
        """Return what tells an answer's thoughts from its words, for a model that has a `thought_format`."""
        assert self.thought_format is not None, "thoughts are told apart where there is a format"
        return splitter_of(
            self.thought_format, thoughts.place, None if tools is None else self.tool_format, tools
        )

    def close(self) -> None:
        """Give the threads back."""
        self._pool.close()


def contained(work: Callable[[], Result]) -> Callable[[], Result]:
    """Return work that fails with GenerationFailed where the tokenizers library panics.

    Its panics are no `Exception`: one would go past whatever answers for a request.
    """

    def run() -> Result:
        try:
            return work()
        except (Exception, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            log.exception("the tokenizer panicked")
            raise GenerationFailed(f"the tokenizer failed: {type(error).__name__}") from error

    return run


def load_text(
    model: ModelConfig,
    *,
    workers: int = 2,
    template_seconds: float = RENDER_SECONDS,
    template_characters: int = TEMPLATE_CHARACTERS,
) -> TextPipeline:
    """Load the text side of a model, without torch; raise ModelUnavailable."""
    files = find_files(model)
    template = load_chat_template(files, model, seconds=template_seconds, characters=template_characters)
    text = TextPipeline(load_tokenizer(files, model), template, workers=workers)
    log.info("tool calls are written and read in the format %r", text.tool_format.name)
    if text.thought_format is not None:
        log.info("thoughts before answers are known by the format %r", text.thought_format.name)
    return text


def special_tokens(tokenizer: TextTokenizer) -> dict[str, int]:
    """Return the ids of special tokens by their texts."""
    return {tokenizer.token_text(id): id for id in sorted(tokenizer.special_ids)}


def tool_format(template: ChatTemplate, special: Mapping[str, int]) -> ToolFormat:
    """Return how the model writes calls, as far as its chat template shows it."""
    try:
        found = detect(template.habits(has_tools=True).sample)
    except TemplateFailed:  # nobody can chat with this model, with tools or without
        found = GENERIC
    fmt = with_tokens(found, special)
    if fmt.channels is not None and any(marker.id is None for marker in fmt.channels.markers):
        return with_tokens(GENERIC, special)  # as text nobody would know where a message ends
    return fmt


def thought_format(
    template: ChatTemplate, calls: ToolFormat, special: Mapping[str, int]
) -> ThoughtFormat | None:
    """Return how the model writes thoughts; None if its chat template shows none."""
    shown = () if calls.channels is None else (CHANNELS_SIGN,)  # who calls in channels thinks in one
    return detect_thoughts((*template.texts, *shown), special)


def refuse_surrogates(text: str) -> None:
    """Raise InvalidInput for a text that UTF-8 can't hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            "tokenizer error: ", Member("inputs"), f" holds half a surrogate pair at character {error.start}"
        ) from error
