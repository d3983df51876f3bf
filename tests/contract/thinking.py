"""Engines of models that think before they answer, each by its notation; what they say is told to them."""

from __future__ import annotations

import re
from typing import Any

from tokenizers import AddedToken

from handlers.settings.table import Settings
from inference.fakes.core import FakeCore, FakeModel
from inference.frontend.client import EngineClient
from inference.text.chat_template import ChatTemplate
from inference.text.pipeline import TextPipeline
from inference.text.stand_in import EOS, plausible_tokens, small_tokenizer
from inference.text.tokenizer import FastTokenizer
from tests.contract.serving import Served, events_of

PATH = "/v1/chat/completions"
CONTEXT_TOKENS = 4_000
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}"
MESSAGE = "<{{ m.role }}>{{ m.content or '' }}" + CALLS
THOUGHT = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
TEMPLATES = {  # with what was thought in earlier turns, and how the answer's is begun
    "think": "{% for m in messages %}"
    + THOUGHT
    + MESSAGE
    + "{% endfor %}{% if open_thought %}{{ '<think>\n' }}"
    "{% elif no_thought %}{{ '<think></think>' }}{% endif %}",
    "hermes": "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}{% endfor %}{{ '<think>\n' }}{% if false %}</think>{% endif %}",
    "mistral": "{% for m in messages %}" + MESSAGE + "{% endfor %}{% if false %}[/THINK]{% endif %}",
    "harmony": "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{% for c in m.tool_calls or [] %}<|start|>assistant to=functions.{{ c.function.name }}"
    "<|channel|>commentary json<|message|>{{ c.function.arguments | tojson }}<|call|>{% else %}"
    "<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}{% endfor %}"
    "{% if false %}<|channel|>analysis{% endif %}{{ '<|start|>assistant' }}",
    None: "{% for m in messages %}" + MESSAGE + "{% endfor %}",
}
SPECIAL = ("[THINK]", "[/THINK]", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>")


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


def chat(**members: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "Is it?"}],
        "temperature": 0,
        "max_tokens": 400,
        **members,
    }


async def answers(server: Served, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of an answer, each with its reason, which are the same when streamed."""
    response = await server.post(PATH, body)
    assert response.status_code == 200, response.text
    whole = response.json()
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, done = events_of(await server.post(PATH, {**body, **streaming}))
    assert done == "[DONE]"
    told = [message_of(choice["message"], choice["finish_reason"]) for choice in whole["choices"]]
    assert told == [gathered(chunks, at) for at in range(len(told))]
    assert chunks[-1]["usage"] == whole["usage"] | {
        "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"]
    }
    return [{**each, "usage": whole["usage"]} for each in told]


def message_of(message: dict[str, Any], reason: str) -> dict[str, Any]:
    names = [call["function"]["name"] for call in message.get("tool_calls", ())]
    told: dict[str, Any] = {"content": message["content"] or "", "calls": names, "reason": reason}
    return told | {name: message[name] for name in ("reasoning_content", "reasoning") if name in message}


def gathered(chunks: list[Any], index: int) -> dict[str, Any]:
    """Return the message that the chunks of a choice add up to."""
    told: dict[str, Any] = {"content": "", "calls": [], "reason": None}
    for part in (part for chunk in chunks for part in chunk["choices"] if part["index"] == index):
        assert told["reason"] is None
        delta = part["delta"]
        assert delta["role"] == "assistant"
        for name in ("content", "reasoning_content", "reasoning"):
            if name in delta:
                told[name] = told.get(name, "") + delta[name]
        for call in delta.get("tool_calls", ()):
            told["calls"] += [call["function"]["name"]] if call["function"]["name"] else []
        told["reason"] = part["finish_reason"]
    return told
