"""A request says the same alone and in any company: tokens, and log-probabilities to the last bit.

Hypothesis draws requests, their order, when they come, and which of them leave; the engines they meet
have one thread or two, steps of a few tokens, and caches so small that requests are preempted, or find
what others left there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from inference.config import EMBEDDED_MODEL, EngineConfig, ModelConfig
from inference.kernels.native import open_library
from inference.kernels.native_screen import Screen
from inference.sequences.state import Integers
from inference.types import CoreRequest, LogprobsMode, Sampling
from tests.engine.adapters import toy_adapter
from tests.engine.cores import Heard, Session, request
from tests.engine.models import make_model
from tests.examples import examples

EXAMPLES = examples(12)  # of each model
TOKENS = 24
PREFIXES = [tuple(range(3, 3 + size)) for size in (0, 16, 33, 48)]  # what prompts have in common
LONGEST = 48 + 20 + TOKENS
SURROUNDINGS: list[dict[str, int | bool]] = [
    {"threads": 1, "max_batch_prefill_tokens": 8, "max_batch_total_tokens": 96, "max_batch_size": 8},
    {"threads": 2, "max_batch_prefill_tokens": 24, "max_batch_total_tokens": 1024},
    {"threads": 2, "max_batch_prefill_tokens": 100, "max_batch_total_tokens": 160, "max_batch_size": 3},
    {"threads": 2, "max_batch_total_tokens": 192, "max_batch_size": 4, "speculate": 5},
]
SERIAL = itertools.count()
MODELS = ("embedded", "embedded int8", "llama", "qwen3 bfloat16", "gemma2", "qwen3_moe")

samplings = st.one_of(
    st.builds(Sampling, repetition_penalty=st.sampled_from((1.0, 1.3))),
    st.builds(
        Sampling,
        sample=st.just(True),
        seed=st.integers(0, 2**64 - 1),
        temperature=st.sampled_from((0.5, 1.0, 1.7)),
        top_k=st.sampled_from((0, 1, 12)),
        top_p=st.sampled_from((1.0, 0.9)),
        typical_p=st.sampled_from((1.0, 0.8)),
        min_p=st.sampled_from((0.0, 0.02)),
        frequency_penalty=st.sampled_from((0.0, 0.4)),
        logit_bias=st.sampled_from(((), ((7, 1.5),))),
    ),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, without its name, and how it comes and goes."""

    prompt: tuple[int, ...]
    tokens: int
    sampling: Sampling
    logprobs: LogprobsMode
    top: int
    prompt_logprobs: bool
    adapter: int
    owner: str = field(compare=False)
    salt: str = field(compare=False)
    after: int = field(compare=False)  # frames that were heard before it comes
    leaves: bool = field(compare=False)  # is aborted after its first token

    def named(self, id: str) -> CoreRequest:
        """Return it as the engine takes it."""
        return request(
            id,
            self.prompt,
            tokens=self.tokens,
            sampling=self.sampling,
            logprobs=self.logprobs,
            top=self.top,
            prompt_logprobs=self.prompt_logprobs,
            adapter=self.adapter,
            ignore_eos=True,
            owner=self.owner,
            salt=self.salt,
        )


crowds = st.lists(
    st.builds(
        Asked,
        prompt=st.builds(
            lambda prefix, tail: (*prefix, *tail),
            st.sampled_from(PREFIXES),
            st.lists(st.integers(3, 90), min_size=1, max_size=20),
        ),
        tokens=st.integers(1, TOKENS),
        sampling=samplings,
        logprobs=st.sampled_from(LogprobsMode),
        top=st.sampled_from((0, 0, 3)),
        prompt_logprobs=st.sampled_from((False, False, False, True)),
        adapter=st.sampled_from((-1, -1, 0, 1)),
        owner=st.sampled_from(("", "anna", "bert")),
        salt=st.sampled_from(("", "", "salt")),
        after=st.integers(0, 6),
        leaves=st.sampled_from((False, False, False, True)),
    ).filter(
        lambda asked: asked.logprobs is not LogprobsMode.NONE or not (asked.top or asked.prompt_logprobs)
    ),
    min_size=2,
    max_size=7,
)


@dataclass
class Subject:
    """One model in several engines, and what it says to requests that are alone."""

    reference: Session
    sessions: list[Session]
    known: dict[Asked, object] = field(default_factory=dict)
    texts: set[tuple[int, ...]] = field(default_factory=set)  # with their prompts

    @property
    def exact(self) -> bool:
        """Return whether every engine says of itself that it is."""
        return all(session.info.deterministic for session in (self.reference, *self.sessions))

    def alone(self, asked: Asked) -> object:
        """Return what is said to a request in an engine of its own, in which nothing is cached."""
        if asked not in self.known:
            heard = self.reference.run([asked.named("alone")])
            self.known[asked] = self.said(asked, heard, "alone")
            self.texts.add((*asked.prompt, *heard.tokens("alone")))
        return self.known[asked]

    def foretell(self, ids: Integers, most: int) -> Integers:
        """Return what a text goes on by if it is one that is known, now and then with an error."""
        length, begun = len(ids), tuple(ids.tolist())
        guess = next((text[length : length + most] for text in self.texts if text[:length] == begun), ())
        return np.array([id if (length + at) % 5 else 3 for at, id in enumerate(guess)], dtype=np.int64)

    def said(self, asked: Asked, heard: Heard, id: str) -> object:
        """Return what can be compared: where nobody is told log-probabilities, they are any numbers."""
        if not self.exact or asked.logprobs is LogprobsMode.NONE:
            return heard.tokens(id)
        return [
            (each.token_id, each.logprob, each.top, each.finish, each.prompt_logprobs, each.prompt_top)
            for each in heard.outputs[id]
        ]


@pytest.fixture(scope="module", params=MODELS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    name, _, kind = request.param.partition(" ")
    if kind == "int8" and open_library() is None:
        pytest.skip("int8 needs the native kernels")
    directory = tmp_path_factory.mktemp(name)
    path = None if name == "embedded" else str(saved(name, kind, directory / "model"))
    adapters = tuple(saved_adapters(path or str(EMBEDDED_MODEL), directory))
    model = ModelConfig(model_id=path, quantize="int8" if kind == "int8" else None, adapters=adapters)
    reference = started(model, threads=1, prefix_caching=False, screen_head=False)
    with pytest.MonkeyPatch.context() as patched:  # these heads are small: their screens would be of no use
        patched.setattr("inference.models.ends.Screen.of", partial(Screen.of, small=True))
        subject = Subject(reference, [started(model, **each) for each in SURROUNDINGS])
    with pytest.MonkeyPatch.context() as patched:  # of random texts nothing would be guessed rightly
        patched.setattr("inference.engine.speculation.propose", subject.foretell)
        yield subject
    for session in (reference, *subject.sessions):
        session.close()


def saved(name: str, kind: str, directory: Path) -> Path:
    model = make_model(name)
    (model.bfloat16() if kind else model).save_pretrained(directory)
    return directory


def saved_adapters(path: str, directory: Path) -> Iterator[str]:
    model = AutoModelForCausalLM.from_pretrained(path, dtype="float32")
    for name, linears in (("some", ("q_proj", "v_proj")), ("all", None)):
        toy_adapter(model, linears, rank=5, seed=len(name)).save(directory / name)
        yield f"{name}={directory / name}"


def started(model: ModelConfig, **values: int | bool) -> Session:
    config = EngineConfig(
        model=model,
        separate_process=False,
        max_total_tokens=LONGEST,
        **values,  # type: ignore[arg-type]
    )
    return Session(config)


def meet(session: Session, crowd: list[Asked]) -> tuple[Heard, list[str]]:
    """Return what is said to a crowd of which each comes after some frames, and some leave; and its names."""
    names = [f"{next(SERIAL)}" for _ in crowd]  # what is said late to those that left is for nobody else
    waiting = sorted(zip(crowd, names, strict=True), key=lambda each: each[0].after)
    leaving = {name for asked, name in waiting if asked.leaves}
    heard, here, frames = Heard(), set[str](), 0
    while waiting or not all(heard.ended(name) for name in here):
        while waiting and (waiting[0][0].after <= frames or all(heard.ended(name) for name in here)):
            asked, name = waiting.pop(0)
            session.submit(asked.named(name))
            here.add(name)
        for name in session.listen(heard) & leaving & here:
            session.core.abort(name)
            here.discard(name)
        frames += 1
    return heard, names


def test_levels_promise_bits_where_there_are_native_kernels(subject: Subject) -> None:
    if open_library() is None:
        pytest.skip("torch's own kernels may round otherwise in another batch")
    assert subject.exact, [session.info.level for session in subject.sessions]


def test_requests_say_the_same_in_any_company(subject: Subject) -> None:
    @given(crowd=crowds, surroundings=st.integers(0, len(SURROUNDINGS) - 1))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    def check(crowd: list[Asked], surroundings: int) -> None:
        expected = [subject.alone(asked) for asked in crowd]
        heard, names = meet(subject.sessions[surroundings], crowd)
        for asked, name, alone in zip(crowd, names, expected, strict=True):
            if not asked.leaves:
                assert subject.said(asked, heard, name) == alone

    check()


def test_requests_say_the_same_when_all_are_preempted(subject: Subject) -> None:
    crowd = [asked_simply(at, size=15 - at) for at in range(4)]
    heard, names = meet(subject.sessions[0], crowd)
    assert sum(stats.preempted for stats in heard.stats) > 0
    said = [subject.said(asked, heard, name) for asked, name in zip(crowd, names, strict=True)]
    assert said == [subject.alone(asked) for asked in crowd]


def test_requests_say_the_same_when_most_of_it_was_guessed(subject: Subject) -> None:
    crowd = [asked_simply(at, size=9 + at) for at in range(3)]
    expected = [subject.alone(asked) for asked in crowd]
    heard, names = meet(subject.sessions[3], crowd)
    said = [subject.said(asked, heard, name) for asked, name in zip(crowd, names, strict=True)]
    assert said == expected
    assert sum(stats.confirmed for stats in heard.stats) > TOKENS


@pytest.mark.parametrize("surroundings", range(len(SURROUNDINGS)))
def test_greedy_requests_say_the_same_where_nobody_asks_for_logprobs(
    subject: Subject, surroundings: int
) -> None:
    greedy = [asked_simply(2 * at, size=30 - 3 * at) for at in range(5)]
    crowd = [replace(asked, logprobs=LogprobsMode.NONE, top=0) for asked in greedy]
    heard, names = meet(subject.sessions[surroundings], crowd)
    said = [subject.said(asked, heard, name) for asked, name in zip(crowd, names, strict=True)]
    assert said == [subject.alone(asked) for asked in crowd]


def test_requests_say_the_same_from_the_cache(subject: Subject) -> None:
    asked = asked_simply(5, size=60)
    for _ in range(2):
        heard, (name,) = meet(subject.sessions[1], [asked])
        assert subject.said(asked, heard, name) == subject.alone(asked)
    assert heard.outputs[name][0].cached_tokens == 48


def asked_simply(seed: int, size: int) -> Asked:
    sampling = Sampling(sample=True, seed=seed, top_p=0.95) if seed % 2 else Sampling()
    prompt = tuple(3 + (7 * at + seed) % 80 for at in range(size))
    return Asked(prompt, TOKENS, sampling, LogprobsMode.RAW, 2, False, seed % 3 - 1, "", "", 0, False)
