from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from inference.config import EngineConfig
from inference.errors import GrammarRefused, InvalidInput, NotReady
from inference.frontend.client import EngineClient
from inference.frontend.looks import Looks
from inference.frontend.preparation import odd_vocabulary, prepare
from inference.ipc.grammar_tokens import GrammarTokens
from inference.text.chat_template import ChatTemplate
from inference.text.pipeline import TextPipeline
from inference.text.stand_in import CHATML
from inference.types import (
    CompiledGrammar,
    FinishReason,
    Grammar,
    GrammarKind,
    LogprobsMode,
    Matcher,
    Request,
    Sampling,
)
from tests.unit.inference.puppet import EOS, MODEL, TOKENIZER, TOO_LONG, Puppet, with_puppet

VOCABULARY = MODEL.vocabulary_size
GRAMMAR = Grammar(kind=GrammarKind.REGEX, source="[0-9]+", member="parameters.grammar")


class Compiled:
    """A grammar that was compiled, of which nothing is asked here."""

    def start(self) -> Matcher:
        raise AssertionError("the engine starts grammars, not the client")


class Compiler:
    """A compiler that finishes when the test says so, and tells what became of it."""

    def __init__(self) -> None:
        self.made_in = threading.get_ident()
        self.asked: list[Grammar] = []
        self.started = asyncio.Event()
        self.cancelled = 0
        self.closed = False
        self.may_finish = asyncio.Event()
        self.finished_at = 0.0  # time.monotonic()
        self.compiled = Compiled()

    async def compile(self, grammar: Grammar) -> CompiledGrammar:
        self.asked.append(grammar)
        self.started.set()
        try:
            await self.may_finish.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if "(" in grammar.source:
            raise GrammarRefused(f"`{grammar.member}`: a group is not closed")
        self.finished_at = time.monotonic()
        return self.compiled

    def close(self) -> None:
        self.closed = True


class Pipeline(TextPipeline):
    """A text side with a compiler of the test's."""

    def __init__(self) -> None:
        super().__init__(TOKENIZER, ChatTemplate({"default": CHATML}, {}), workers=1)
        self.compilers: list[tuple[Compiler, tuple[int, ...]]] = []

    def grammar_compiler(self, tokens: GrammarTokens, *, apart: bool) -> Compiler:  # type: ignore[override]
        assert not apart  # as the core is in this process
        self.compilers.append((Compiler(), tokens.eos_token_ids))
        return self.compilers[-1][0]


def with_compiler(test: Callable[[EngineClient, Puppet, Compiler], Awaitable[None]]) -> Compiler:
    """Run a test with a client whose text side has a Compiler; return that."""
    pipelines: list[Pipeline] = []

    def load_text() -> Pipeline:
        pipelines.append(Pipeline())
        return pipelines[-1]

    async def check(client: EngineClient, core: Puppet) -> None:
        await test(client, core, pipelines[0].compilers[0][0])

    with_puppet(check, load_text=load_text)
    ((compiler, eos),) = pipelines[0].compilers
    assert eos == (EOS,)
    return compiler


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(id="a", prompt=""), "`inputs` cannot be empty"),
        (
            Request(id="a", prompt="x", truncate=0),
            "`truncate` must be strictly positive and less than 20. Given: 0",
        ),
        (
            Request(id="a", prompt="x", truncate=21),
            "`truncate` must be strictly positive and less than 20. Given: 21",
        ),
        (Request(id="a", prompt="x", stop=("",)), '`stop` must not contain an empty string. Given: ""'),
        (Request(id="a", prompt="x", prompt_ids=()), "`inputs` cannot be empty"),
        (
            Request(id="a", prompt="", prompt_ids=(5, VOCABULARY)),
            f"`inputs` holds token {VOCABULARY}, but the vocabulary has {VOCABULARY} tokens: "
            f"use ids from 0 to {VOCABULARY - 1}",
        ),
        (
            Request(id="a", prompt="", prompt_ids=(5, -1)),
            f"`inputs` holds token -1, but the vocabulary has {VOCABULARY} tokens: "
            f"use ids from 0 to {VOCABULARY - 1}",
        ),
        (
            Request(id="a", prompt="x", sampling=Sampling(logit_bias=((3, 1.0), (VOCABULARY, 1.0)))),
            f"`logit_bias` names token {VOCABULARY}, but the vocabulary has {VOCABULARY} tokens: "
            f"use ids from 0 to {VOCABULARY - 1}",
        ),
        (
            Request(id="a", prompt="x", max_new_tokens=5, min_new_tokens=6),
            "`min_new_tokens` must be <= `max_new_tokens`. Given: 6 `min_new_tokens` and 5 `max_new_tokens`",
        ),
        (
            Request(id="a", prompt="x" * 5, min_new_tokens=26),
            "`min_new_tokens` must be <= 25, the `max_new_tokens` for which this prompt leaves room. "
            "Given: 26",
        ),
        (
            Request(id="a", prompt="x" * 10, max_new_tokens=21),
            TOO_LONG.format(prompt=10, new=21),
        ),
        (
            Request(id="a", prompt="x" * 31),
            TOO_LONG.format(prompt=31, new=0),
        ),
        (
            Request(id="a", prompt="x" * 10, max_new_tokens=5000),
            TOO_LONG.format(prompt=10, new=1024),
        ),
        (
            Request(id="a", prompt="x" * 21, max_new_tokens=1),
            "`inputs` must have less than 20 tokens. Given: 21",
        ),
    ],
)
def test_a_request_out_of_its_limits_is_refused_in_the_words_of_tgi(request_: Request, message: str) -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        with pytest.raises(InvalidInput) as refusal:
            await client.submit(request_)
        assert str(refusal.value) == message
        assert core.requests == []

    with_puppet(check)


@pytest.mark.parametrize(
    ("prompt", "max_new_tokens", "truncate", "ids", "budget"),
    [
        ("x" * 20, 10, None, 20, 10),
        ("x" * 5, None, None, 5, 25),
        ("x" * 40, 5, 8, 8, 5),
        ("x" * 3, 5, 20, 3, 5),
    ],
)
def test_a_request_within_its_limits_is_queued(
    prompt: str, max_new_tokens: int | None, truncate: int | None, ids: int, budget: int
) -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(
            Request(id="a", prompt=prompt, max_new_tokens=max_new_tokens, truncate=truncate)
        )
        (queued,) = core.requests
        assert (len(queued.prompt_ids), queued.max_new_tokens) == (ids, budget)
        assert generation.prompt_tokens == ids

    with_puppet(check)


def test_truncation_keeps_the_end_of_the_prompt() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        await client.submit(Request(id="a", prompt="abcdef", truncate=2))
        assert list(core.requests[0].prompt_ids) == TOKENIZER.encode("ef", add_special_tokens=False)

    with_puppet(check)


def test_ids_are_taken_as_they_are_and_truncated_like_a_text() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        await client.submit(Request(id="a", prompt="not this", prompt_ids=(EOS, 7, 8)))
        await client.submit(Request(id="b", prompt="", prompt_ids=(EOS, 7, 8), truncate=2))
        assert [request.prompt_ids for request in core.requests] == [(EOS, 7, 8), (7, 8)]

    with_puppet(check)


def test_what_the_model_knows_counts_and_not_what_its_tokenizer_does() -> None:
    padding = TOKENIZER.vocabulary_size  # an id without a token, below the size of the model's embedding
    (last,) = TOKENIZER.encode("z", add_special_tokens=False)
    small = replace(MODEL, vocabulary_size=last)  # a tokenizer with more tokens than the model

    async def check(client: EngineClient, core: Puppet) -> None:
        sampling = Sampling(logit_bias=((padding, 1.0),))
        await client.submit(Request(id="a", prompt="", prompt_ids=(5, padding), sampling=sampling))
        assert core.requests[0].prompt_ids == (5, padding)
        assert await client.decode((last, padding)) == "z"
        looks = Looks(core, lambda request: request.cache_salt)
        with pytest.raises(InvalidInput, match=f"holds token {last}"):
            await prepare(Request(id="b", prompt="z"), Pipeline(), small, None, EngineConfig(), looks)

    with_puppet(check)


def test_the_engine_gets_all_that_was_asked_for() -> None:
    sampling = Sampling(logit_bias=((VOCABULARY - 1, 1.0),))

    async def check(client: EngineClient, core: Puppet) -> None:
        await client.submit(
            Request(
                id="a",
                prompt="Hi",
                max_new_tokens=9,
                min_new_tokens=9,
                ignore_eos=True,
                sampling=sampling,
                logprobs=LogprobsMode.RAW,
                top_n_tokens=3,
                prompt_logprobs=True,
                owner="ann",
                cache_salt="hers",
            )
        )
        (queued,) = core.requests
        assert (queued.max_new_tokens, queued.min_new_tokens, queued.ignore_eos) == (9, 9, True)
        assert (queued.sampling, queued.logprobs, queued.top_n_tokens) == (sampling, LogprobsMode.RAW, 3)
        assert (queued.prompt_logprobs, queued.grammar) == (True, None)
        assert (queued.owner, queued.salt) == ("ann", "hers")

    with_puppet(check)


def test_a_grammar_is_compiled_before_the_request_is_queued() -> None:
    async def check(client: EngineClient, core: Puppet, compiler: Compiler) -> None:
        submitting = asyncio.create_task(client.submit(Request(id="a", prompt="Hi", grammar=GRAMMAR)))
        await compiler.started.wait()
        assert core.requests == []
        compiler.may_finish.set()
        generation = await submitting
        assert compiler.asked == [GRAMMAR]
        assert core.requests[0].grammar is compiler.compiled
        core.say("a", "7", FinishReason.LENGTH)
        (event,) = await generation.collect()
        assert event.finish is not None
        timings = event.finish.timings  # the time of compiling is that of validation
        assert timings.submitted <= compiler.finished_at <= timings.queued

    compiler = with_compiler(check)
    assert compiler.made_in != threading.get_ident()  # it takes a while for a large vocabulary
    assert compiler.closed


def test_a_refused_grammar_queues_nothing() -> None:
    async def check(client: EngineClient, core: Puppet, compiler: Compiler) -> None:
        compiler.may_finish.set()
        broken = Grammar(kind=GrammarKind.REGEX, source="(", member="parameters.grammar")
        with pytest.raises(GrammarRefused, match=r"`parameters\.grammar`: a group is not closed"):
            await client.submit(Request(id="a", prompt="Hi", grammar=broken))
        assert core.requests == []

    with_compiler(check)


def test_a_request_that_is_too_long_has_its_grammar_not_compiled() -> None:
    async def check(client: EngineClient, core: Puppet, compiler: Compiler) -> None:
        with pytest.raises(InvalidInput, match="tokens"):
            await client.submit(Request(id="a", prompt="x" * 30, grammar=GRAMMAR))
        assert compiler.asked == []

    with_compiler(check)


def test_a_request_given_up_while_its_grammar_compiles_leaves_nothing_behind() -> None:
    async def check(client: EngineClient, core: Puppet, compiler: Compiler) -> None:
        with client.admit():
            submitting = asyncio.create_task(client.submit(Request(id="a", prompt="Hi", grammar=GRAMMAR)))
            await compiler.started.wait()
            submitting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await submitting
        assert compiler.cancelled == 1
        assert (core.requests, core.aborted) == ([], [])
        compiler.may_finish.set()
        await client.submit(Request(id="a", prompt="Hi", grammar=GRAMMAR))  # its id is free
        core.say("a", "7", FinishReason.LENGTH)
        await asyncio.sleep(0)
        await client.drain(60)  # nothing is waited for

    with_compiler(check)


def test_a_server_that_shuts_down_meanwhile_takes_the_request_no_more() -> None:
    async def check(client: EngineClient, core: Puppet, compiler: Compiler) -> None:
        submitting = asyncio.create_task(client.submit(Request(id="a", prompt="Hi", grammar=GRAMMAR)))
        await compiler.started.wait()
        await client.drain(0)
        compiler.may_finish.set()
        with pytest.raises(NotReady, match="shuts down"):
            await submitting
        assert core.requests == []

    with_compiler(check)


def test_grammars_are_refused_where_tokens_have_no_text_of_their_own() -> None:
    class Blind(Pipeline):
        def grammar_tokens(self, eos_token_ids: tuple[int, ...]) -> None:
            return None

    async def check(client: EngineClient, core: Puppet) -> None:
        with pytest.raises(GrammarRefused, match=r"not supported: .* Leave out `parameters\.grammar`"):
            await client.submit(Request(id="a", prompt="Hi", grammar=GRAMMAR))
        await client.submit(Request(id="b", prompt="Hi"))
        assert [request.id for request in core.requests] == ["b"]

    with_puppet(check, load_text=Blind)


def test_an_end_of_texts_that_the_model_lacks_is_told() -> None:
    for ids, told in (((EOS,), False), ((EOS, 99_999), True)):
        odd = odd_vocabulary(Pipeline(), replace(MODEL, eos_token_ids=ids))
        assert ("Texts are to end at the token 99999, and the model has ids up to" in (odd or "")) is told
