"""A fake engine that shows each member of a request: in prompts, in tokens, in a text that can be stopped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tokenizers import AddedToken, processors

from inference.config import EngineConfig
from inference.fakes.core import FakeCore, FakeModel
from inference.fakes.prompts import by_prompt
from inference.fakes.vision import FAKE_VISION, SeeingClient
from inference.frontend.client import EngineClient
from inference.text.chat_template import ChatTemplate
from inference.text.pipeline import TextPipeline
from inference.text.stand_in import EOS, plausible_tokens, small_tokenizer
from inference.text.tokenizer import FastTokenizer
from inference.types import CoreRequest
from tests.contract.member_bodies import ADAPTERS, REPLY, SPEAKING

BEGIN = "<s>"  # that the tokenizer puts before a text
TEMPLATE = (  # shows whatever it can be told
    "{{ [messages, tools, add_generation_prompt] | tojson }}"
    "{{ [enable_thinking, reasoning_effort] | map('default', none) | list | tojson }}"
    "{% if open_thought %}<think>{% elif false %}</think>{% endif %}"
)


def telling_engine(config: EngineConfig, failing: str | None = None, fails_after: int = 0) -> EngineClient:
    """Return an engine that answers SPEAKING with REPLY, and anything else with what a hash says.

    A prompt that holds `failing`, if there is such a text, fails after that many tokens. A salt of the
    prefix cache is told as the answer, which no real one does.
    """
    tokenizer = _tokenizer()
    (eos,) = tokenizer.encode(EOS, add_special_tokens=False)
    reply = by_prompt(tokenizer, {SPEAKING: REPLY}, partial(tokenizer.encode, add_special_tokens=False))

    def script(request: CoreRequest) -> Sequence[int] | None:
        if request.salt:
            return tokenizer.encode(request.salt, add_special_tokens=False)
        return reply(request)

    model = FakeModel(
        tokens=plausible_tokens(tokenizer),
        eos_token_id=eos,
        texts=tuple(map(tokenizer.token_text, range(tokenizer.vocabulary_size))),
        id=config.model.name,
        adapters=ADAPTERS,
        adapter_directory=config.model.adapter_directory,
        vision=FAKE_VISION,
        script=script,
        fails=by_prompt(tokenizer, {failing: failing} if failing else {}, "injected failure: {}".format),
        fails_after=fails_after,
    )
    template = ChatTemplate({"default": TEMPLATE}, {})
    pipeline = partial(TextPipeline, tokenizer, template, workers=config.validation_workers)
    return SeeingClient(FakeCore(model), config, pipeline, plausible=model.tokens)


def _tokenizer() -> FastTokenizer:
    small = small_tokenizer()
    small.add_special_tokens([AddedToken(BEGIN, special=True)])
    special = [(BEGIN, small.token_to_id(BEGIN))]
    small.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN}:0 $A:0", pair=None, special_tokens=special
    )
    return FastTokenizer(small)
