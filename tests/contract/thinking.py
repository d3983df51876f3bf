"""Engines of models that think before they answer, each by its notation; what they say is told to them."""

from __future__ import annotations

import re

from tokenizers import AddedToken

from handlers.settings import Settings
from inference.client import EngineClient
from inference.fake import FakeCore, FakeModel
from inference.text.chat_template import ChatTemplate
from inference.text.pipeline import TextPipeline
from inference.text.stand_in import EOS, plausible_tokens, small_tokenizer
from inference.text.tokenizer import FastTokenizer

CONTEXT_TOKENS = 4_000
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}"
MESSAGE = "<{{ m.role }}>{{ m.content or '' }}" + CALLS
THOUGHT = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
TEMPLATES = {  # with what was thought in earlier turns, and how the answer's is begun
    "think": "{% for m in messages %}"
    + THOUGHT
    + MESSAGE
    + "{% endfor %}{% if open_thought %}{{ '<think>\n' }}{% endif %}",
    "hermes": "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}{% endfor %}{{ '<think>\n' }}{% if false %}</think>{% endif %}",
    "mistral": "{% for m in messages %}" + MESSAGE + "{% endfor %}{% if false %}[/THINK]{% endif %}",
    "harmony": "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if false %}<|channel|>analysis{% endif %}{{ '<|start|>assistant' }}",
    None: "{% for m in messages %}" + MESSAGE + "{% endfor %}",
}
SPECIAL = ("[THINK]", "[/THINK]", "<|start|>", "<|channel|>", "<|message|>", "<|end|>")


def thinking_engine(kind: str | None, says: str | None) -> EngineClient:
    """Return an engine that says a text, with special tokens spelt out; None: whatever comes to it."""
    small = small_tokenizer()
    small.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer = FastTokenizer(small)
    (eos,) = tokenizer.encode(EOS, add_special_tokens=False)
    pieces = re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", says or "")
    script = [id for piece in pieces for id in tokenizer.encode(piece, add_special_tokens=False)]
    core = FakeCore(
        FakeModel(
            tokens=plausible_tokens(tokenizer),
            eos_token_id=eos,
            texts=tuple(map(tokenizer.token_text, range(tokenizer.vocabulary_size))),
            max_input_tokens=CONTEXT_TOKENS - 1,
            max_total_tokens=CONTEXT_TOKENS,
            script=lambda request: None if says is None else script,
        )
    )
    template = ChatTemplate({"default": TEMPLATES[kind]}, {})
    pipeline = TextPipeline(tokenizer, template, workers=1)
    return EngineClient(core, Settings().engine_config(), lambda: pipeline)
