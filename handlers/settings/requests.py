"""The rows about requests: a part of the table of settings, what one request may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from handlers.http.sender import ALWAYS, AUTO, NEVER
from handlers.settings import effects as effects
from handlers.settings.images import ImageSettings
from handlers.settings.row import (
    BYTES,
    COUNT,
    TIMEOUT,
    TOKENS,
    Group,
    boolean,
    choice,
    decimal,
    integer,
    row,
)
from inference.config import TEMPLATE_CHARACTERS
from inference.grammar_limits import SOURCE_BYTES

REQUEST = Group.REQUEST


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings(ImageSettings):
    """What one request may ask for, how that is meant, and what it may bring."""

    # fmt: off
    max_best_of: int = row(2, COUNT, REQUEST, "largest `best_of` on TGI's routes", unit="sequences")
    max_n: int = row(16, COUNT, REQUEST,
        "largest `n` on OpenAI's routes, and largest `best_of` on /v1/completions", unit="sequences",
        env=("PARLEY_MAX_N", "MAX_N"), tgi=False)
    max_stop_sequences: int = row(4, integer(0, 1_000_000), REQUEST, "most stop sequences", unit="sequences")
    max_top_n_tokens: int = row(5, integer(0, 1_000_000), REQUEST, "largest `top_n_tokens`", unit="tokens")
    max_client_batch_size: int = row(4, COUNT, REQUEST,
        "most prompts in one request to /v1/completions", unit="prompts")
    payload_limit: int = row(2_000_000, BYTES, REQUEST, "largest request body", unit="bytes")
    max_grammar_size: int = row(SOURCE_BYTES, integer(1, SOURCE_BYTES), REQUEST,
        "largest JSON schema, in `grammar`, `response_format` or one tool, or regular expression",
        unit="bytes",
        tgi=False, effect=effects.GRAMMARS)
    max_sequence_logprobs: int = row(524_288, TOKENS, REQUEST,
        "most log-probabilities of alternative tokens that one request may ask for, over all its prompts "
        "and answers; a request without `max_tokens` gets answers no longer than that allows",
        unit="numbers", tgi=False)
    template_timeout: float = row(5.0, TIMEOUT, REQUEST,
        "longest that the model's chat template may take to render one conversation",
        unit="seconds", tgi=False)
    max_template_output: int = row(TEMPLATE_CHARACTERS, integer(1, TEMPLATE_CHARACTERS), REQUEST,
        "longest prompt that the chat template may make of one conversation", unit="characters", tgi=False)
    enable_prefill_logprobs: bool = row(False, boolean, REQUEST,
        "answer `decoder_input_details` with the log-probabilities of the prompt")
    logprobs_mode: str = row("auto", choice("auto", "raw", "processed"), REQUEST,
        "which log-probabilities are told: the model's own (raw), or those after temperature, filters and "
        "penalties, which tokens are drawn by (processed); auto: processed on TGI's routes, raw on OpenAI's",
        tgi=False)
    disable_grammar_support: bool = row(False, boolean, REQUEST,
        "refuse whatever needs a grammar: `grammar`, `response_format` and tools that may be called")
    response_format_with_tools: str = row("openai", choice("openai", "all", "none"), REQUEST,
        "whose chats may ask for `response_format` beside `tools`, which TGI refuses: openai: those of "
        "OpenAI's own clients and Vercel's AI SDK, which agents are built with; all; or none. The answer is "
        "calls, or a text in that format", tgi=False, effect=effects.GRAMMARS)
    openai_dialect: str = row(AUTO, choice(AUTO, ALWAYS, NEVER), REQUEST,
        "whom OpenAI's routes answer as OpenAI does where TGI does it otherwise (errors as objects, 500 for "
        "a failed generation, `finish_reason` null; docs/compatibility.md lists it): auto: OpenAI's own "
        "clients and Vercel's AI SDK, by their headers; always: everybody, for clients behind a proxy that "
        "strips these; never: nobody, but on routes that TGI hasn't", tgi=False)
    reasoning_format: str = row("auto", choice("auto", "raw", "parsed", "hidden"), REQUEST,
        "where the thoughts of a model that thinks before it answers are in chats, Responses and Messages: "
        "raw: in the text, as with TGI; parsed: in a member of their own; hidden: nowhere. auto: parsed in "
        "Responses and Messages, and in chats if the model marks thoughts by special tokens; raw otherwise. "
        "See docs/reasoning.md", tgi=False)
    reasoning_field: str = row("reasoning_content", choice("reasoning_content", "reasoning"), REQUEST,
        "name of that member in a chat's message: reasoning_content, as with DeepSeek, SGLang and "
        "llama.cpp, or reasoning, as with vLLM, OpenRouter and huggingface_hub", tgi=False)
    watermark_gamma: float = row(0.5, decimal(0, 1, above=True, below=True), REQUEST,
        "share of the vocabulary that `watermark` prefers at each token")
    watermark_delta: float = row(2.0, decimal(0, 1000), REQUEST,
        "what `watermark` adds to the logits of that share")
    # fmt: on
