"""Everything between text and token ids for one model: tokenizer, chat template, threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from inference.config import ModelConfig
from inference.errors import InvalidInput
from inference.text.chat_template import ChatTemplate, load_chat_template
from inference.text.files import find_files
from inference.text.sequence import SequenceText
from inference.text.tokenizer import TextTokenizer, load_tokenizer
from inference.types import Messages, TextToken

Result = TypeVar("Result")

INLINE_CHARACTERS = 512  # encodes in less time than the way to a thread and back takes


class TokenizerPool:
    """A tokenizer behind threads, so that a long text never holds up the event loop."""

    def __init__(self, tokenizer: TextTokenizer, workers: int) -> None:
        self.tokenizer = tokenizer
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="text")

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text; raise InvalidInput for what is not Unicode text."""
        if len(text) <= INLINE_CHARACTERS:
            return self._encode(text, add_special_tokens)
        return await self.run(lambda: self._encode(text, add_special_tokens))

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> tuple[TextToken, ...]:
        """Return the tokens of a text; raise InvalidInput for what is not Unicode text."""
        if len(text) <= INLINE_CHARACTERS:
            return self._tokenize(text, add_special_tokens)
        return await self.run(lambda: self._tokenize(text, add_special_tokens))

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, run on one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Drop what is queued and let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        refuse_surrogates(text)
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _tokenize(self, text: str, add_special_tokens: bool) -> tuple[TextToken, ...]:
        refuse_surrogates(text)
        return self.tokenizer.tokenize(text, add_special_tokens=add_special_tokens)


class TextPipeline:
    """A model's text side; used on the event loop, works on threads."""

    def __init__(self, tokenizer: TextTokenizer, template: ChatTemplate, *, workers: int) -> None:
        self._pool = TokenizerPool(tokenizer, workers)
        self._tokenizer = tokenizer
        self._template = template
        self.special_ids = tokenizer.special_ids

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text; raise InvalidInput."""
        return await self._pool.encode(text, add_special_tokens=add_special_tokens)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> tuple[TextToken, ...]:
        """Return the tokens of a text with their places; raise InvalidInput."""
        return await self._pool.tokenize(text, add_special_tokens=add_special_tokens)

    async def render_chat(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """Return the prompt for a conversation; raise TemplateFailed."""
        return await self._pool.run(
            lambda: self._template.render(messages, tools=tools, template_kwargs=template_kwargs)
        )

    def token_text(self, token_id: int) -> str:
        """Return the text of a token by itself."""
        return self._tokenizer.token_text(token_id)

    def sequence(self, prompt_ids: Sequence[int], stops: Sequence[str]) -> SequenceText:
        """Return what collects the text of the tokens that follow a prompt."""
        return SequenceText(self._tokenizer.stream(prompt_ids), stops, self._tokenizer.token_text)

    def close(self) -> None:
        """Give the threads back."""
        self._pool.close()


def load_text(model: ModelConfig, *, workers: int = 2) -> TextPipeline:
    """Load the text side of a model, without torch; raise ModelUnavailable."""
    files = find_files(model)
    return TextPipeline(load_tokenizer(files, model), load_chat_template(files, model), workers=workers)


def refuse_surrogates(text: str) -> None:
    """Raise InvalidInput for a text that UTF-8 can't hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"tokenizer error: `inputs` holds half a surrogate pair at character {error.start}"
        ) from error
