"""The rows about requests: a part of the table of settings, what one request may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from handlers import settings_effects as effects
from handlers.http.sender import ALWAYS, AUTO, NEVER
from handlers.settings_images import ImageSettings
from handlers.settings_table import (
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
from inference.grammar.limits import SOURCE_BYTES

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
        "largest schema, of `grammar`, `response_format` or one tool, or regular expression", unit="bytes",
        tgi=False, effect=effects.GRAMMARS)
    max_sequence_logprobs: int = row(524_288, TOKENS, REQUEST,
        "most log-probabilities of alternatives that one body may ask for, those of all its texts, and of "
        "their prompts, counted; a body without `max_tokens` gets texts no longer than that",
        unit="numbers", tgi=False)
    template_timeout: float = row(5.0, TIMEOUT, REQUEST,
        "longest that the chat template may take over one conversation", unit="seconds", tgi=False)
    max_template_output: int = row(TEMPLATE_CHARACTERS, integer(1, TEMPLATE_CHARACTERS), REQUEST,
        "longest prompt that the chat template may make of one conversation", unit="characters", tgi=False)
    enable_prefill_logprobs: bool = row(False, boolean, REQUEST,
        "answer `decoder_input_details` with the prompt's log-probabilities")
    logprobs_mode: str = row("auto", choice("auto", "raw", "processed"), REQUEST,
        "distribution that log-probabilities are of: the model's own (raw) or the one that is sampled from "
        "(processed); auto: processed on TGI's routes, raw on OpenAI's", tgi=False)
    disable_grammar_support: bool = row(False, boolean, REQUEST,
        "refuse whatever needs a grammar: `grammar`, `response_format` and tools that may be called")
    response_format_with_tools: str = row("openai", choice("openai", "all", "none"), REQUEST,
        "whose chats may have `response_format` beside `tools`, which TGI refuses, and are answered by "
        "calls, or by a text of that form: those of OpenAI's own clients and Vercel's AI SDK, which agents "
        "are made with, everybody's, or nobody's", tgi=False, effect=effects.GRAMMARS)
    openai_dialect: str = row(AUTO, choice(AUTO, ALWAYS, NEVER), REQUEST,
        "whom OpenAI's routes answer as OpenAI does where TGI does it otherwise (errors as objects, 500 for "
        "a failed generation, `finish_reason` null; docs/compatibility.md lists it): auto: OpenAI's own "
        "clients and Vercel's AI SDK, by their headers; always: everybody, for clients behind a proxy that "
        "strips these; never: nobody, but on routes that TGI hasn't", tgi=False)
    reasoning_format: str = row("auto", choice("auto", "raw", "parsed", "hidden"), REQUEST,
        "where chats, Responses and messages have what a model thinks before it answers: in the text, as the "
        "model writes it and as from TGI (raw), apart from it (parsed), or nowhere (hidden); auto: apart "
        "where the marks around it are special tokens, which no text shows, and in Responses and messages; "
        "in the text otherwise", tgi=False)
    reasoning_field: str = row("reasoning_content", choice("reasoning_content", "reasoning"), REQUEST,
        "member of a chat's message that has it apart: as DeepSeek, SGLang and llama.cpp call it, or as "
        "vLLM, OpenRouter and huggingface_hub do", tgi=False)
    watermark_gamma: float = row(0.5, decimal(0, 1, above=True, below=True), REQUEST,
        "share of the vocabulary that `watermark` prefers at each token")
    watermark_delta: float = row(2.0, decimal(0, 1000), REQUEST,
        "what `watermark` adds to the logits of that share")
    # fmt: on
