"""The text side of the engine, for its callers: tokens, prompts, and what the model's texts look like."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from inference.frontend.limits import check_given_ids, check_prompt
from inference.frontend.looks import Looks, check_images
from inference.frontend.preparation import prompt_ids
from inference.types import Messages, ModelInfo, Request, TextToken

if TYPE_CHECKING:
    from inference.text.pipeline import TextPipeline
    from inference.thoughts.formats import ThoughtFormat
    from inference.thoughts.types import Splitter, ThoughtUse
    from inference.tools.formats import ToolFormat
    from inference.tools.types import ToolUse


class TextSide(ABC):
    """What can be asked of a model's text without generating any."""

    _looks: Looks

    @property
    @abstractmethod
    def model(self) -> ModelInfo:
        """Return what was loaded; raise NotReady before."""

    @abstractmethod
    def _ready_text(self) -> TextPipeline:
        """Return what tokenises; raise NotReady."""

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> Sequence[TextToken]:
        """Return the tokens of a text with their places in it; raise NotReady, InvalidInput or Overloaded."""
        return await self._ready_text().tokenize(text, add_special_tokens=add_special_tokens)

    async def count(self, request: Request) -> int:
        """Return how many tokens a request's prompt has, its images' included, also if it is too long.

        Raises NotReady, InvalidInput or Overloaded; GenerationFailed if the engine failed on an image.
        """
        text = self._ready_text()
        check_prompt(request, self.model)
        check_images(request, self.model)
        try:
            return len(await prompt_ids(request, text, self.model, self._looks, bounded=False))
        finally:
            self._looks.drop(request)

    async def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a prompt that was given as ids; raise NotReady, InvalidInput or Overloaded."""
        text = self._ready_text()
        check_given_ids(ids, self.model)
        return await text.decode(ids)

    async def render_chat(
        self,
        messages: Messages,
        *,
        tools: ToolUse | None = None,
        tool_prompt: str | None = None,
        template_kwargs: Mapping[str, object] | None = None,
        continue_final: bool | None = None,
    ) -> str:
        """Return the prompt for a conversation; raise NotReady, InvalidInput, TemplateFailed or Overloaded.

        A last message of the assistant is left open to go on, unless `continue_final` is false; where
        it is true, the last message must be the assistant's. An image part, `{"type": "image"}`, becomes
        what the model's prompts have for one.
        """
        vision = self.model.vision
        return await self._ready_text().render_chat(
            messages,
            tools=tools,
            tool_prompt=tool_prompt,
            template_kwargs=template_kwargs,
            continue_final=continue_final,
            vision=None if vision is None or vision.reason else vision,
        )

    @property
    def tool_format(self) -> ToolFormat:
        """Return how the model writes calls; raise NotReady."""
        return self._ready_text().tool_format

    @property
    def thought_format(self) -> ThoughtFormat | None:
        """Return how the model writes thoughts, None if it isn't known to have any; raise NotReady."""
        return self._ready_text().thought_format

    def splitter(self, thoughts: ThoughtUse, tools: ToolUse | None) -> Splitter:
        """Return what tells an answer's thoughts from its words, for a model that is known to think."""
        return self._ready_text().splitter(thoughts, tools)

    @property
    def template_names(self) -> frozenset[str]:
        """Return the variables that the chat template mentions; raise NotReady."""
        return self._ready_text().template_names

    @property
    def token_bytes(self) -> Sequence[bytes] | None:
        """Return the bytes of each token by its id, None where they are unknown; raise NotReady."""
        return self._ready_text().token_bytes
