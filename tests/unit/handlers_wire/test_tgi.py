from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from handlers.wire import tgi
from handlers.wire.limits import Limits
from handlers.wire.tgi import Generate, Shown
from handlers.wire.types import GenerateInstance, GenerateParameters, GenerateRequest
from inference.errors import GrammarRefused, InvalidInput
from inference.types import FinishReason, Grammar, GrammarKind, LogprobsMode, Watermark

LIMITS = Limits(
    max_best_of=2,
    max_stop_sequences=4,
    max_top_n_tokens=5,
    prefill_logprobs=True,
    watermark=Watermark(gamma=0.25, delta=1.5),
)
Fits = Callable[[str, Any], bool]


def understand(parameters: dict[str, Any] | None, *, full_text: bool = False) -> Generate:
    body: Any = {"inputs": "Hi"} | ({} if parameters is None else {"parameters": parameters})
    seeds = count(100)
    return tgi.to_generate(body, LIMITS, id="r", draw=lambda: next(seeds), full_text=full_text)


@pytest.mark.parametrize(
    ("parameters", "stream", "message"),
    [
        ({"best_of": 2}, True, "`best_of` != 1 is not supported when streaming tokens"),
        ({"best_of": 0}, True, "`best_of` != 1 is not supported when streaming tokens"),
        (
            {"decoder_input_details": True},
            True,
            "`decoder_input_details` == true is not supported when streaming tokens",
        ),
        ({"best_of": 3}, False, "`best_of` must be > 0 and <= 2. Given: 3"),
        ({"best_of": 0}, False, "`best_of` must be > 0 and <= 2. Given: 0"),
    ],
)
def test_what_tgi_refuses_before_the_queue_is_refused_there(
    parameters: dict[str, Any], stream: bool, message: str
) -> None:
    body: Any = {"inputs": "", "parameters": parameters | {"temperature": -1}}
    with pytest.raises(InvalidInput) as refusal:
        tgi.sequences(body, LIMITS, stream=stream)
    assert str(refusal.value) == message


def test_best_of_can_be_switched_off_at_start() -> None:
    limits = Limits(max_best_of=1, max_stop_sequences=4, max_top_n_tokens=5)
    with pytest.raises(InvalidInput, match=r"^`best_of` != 1 is not allowed for this endpoint$"):
        tgi.sequences({"inputs": "Hi", "parameters": {"best_of": 2}}, limits, stream=False)


@pytest.mark.parametrize(
    ("body", "places"),
    [
        ({"inputs": "Hi"}, 1),
        ({"inputs": "Hi", "parameters": {"best_of": None}}, 1),
        ({"inputs": "Hi", "parameters": {"best_of": 2}}, 2),
    ],
)
def test_each_candidate_takes_a_place(body: Any, places: int) -> None:
    assert places == tgi.sequences(body, LIMITS, stream=False)


def test_absent_parameters_sample_and_empty_ones_do_not() -> None:
    absent, empty = understand(None).requests[0].sampling, understand({}).requests[0].sampling
    assert (absent.sample, absent.seed) == (True, 100)
    assert (empty.sample, empty.seed) == (False, 0)


def test_every_parameter_reaches_the_engine() -> None:
    given = {
        "max_new_tokens": 7,
        "stop": ["a", "b"],
        "truncate": 3,
        "top_n_tokens": 2,
        "seed": 5,
        "decoder_input_details": True,
        "do_sample": True,
        "min_new_tokens": 4,
        "ignore_eos": True,
        "min_p": 0.5,
        "watermark": True,
        "logit_bias": [0, 2],
        "grammar": {"type": "regex", "value": "a+"},
    }
    request = understand(given).requests[0]
    assert (request.id, request.prompt, request.add_special_tokens) == ("r", "Hi", True)
    assert (request.max_new_tokens, request.stop, request.truncate) == (7, ("a", "b"), 3)
    assert (request.top_n_tokens, request.sampling.seed, request.prompt_logprobs) == (2, 5, True)
    assert request.logprobs is LogprobsMode.PROCESSED
    assert (request.min_new_tokens, request.ignore_eos) == (4, True)
    assert (request.sampling.min_p, request.sampling.logit_bias) == (0.5, ((1, 2.0),))
    assert request.sampling.watermark == Watermark(gamma=0.25, delta=1.5)
    assert isinstance(request.grammar, Grammar)
    assert (request.grammar.kind, request.grammar.member) == (GrammarKind.REGEX, "parameters.grammar.value")


BEST = {"best_of": 2, "do_sample": True}


@pytest.mark.parametrize(
    ("parameters", "tokens", "computed"),
    [
        ({}, Shown.ALWAYS, True),
        ({"details": False}, Shown.ALWAYS, True),
        (None, Shown.WITH_DETAILS, False),
        ({"details": False, "best_of": 1}, Shown.WITH_DETAILS, False),
        ({"details": True}, Shown.WITH_DETAILS, True),
        ({"decoder_input_details": True}, Shown.WITH_DETAILS, True),
        (BEST, Shown.WITH_DETAILS, True),
        ({"top_n_tokens": 2}, Shown.WITH_DETAILS, False),
        ({"top_n_tokens": 2, "details": True}, Shown.WITH_DETAILS, True),
        (None, Shown.NEVER, False),
        ({"details": True}, Shown.NEVER, False),
        (BEST, Shown.NEVER, True),
        ({"top_n_tokens": 2}, Shown.NEVER, False),
        ({"decoder_input_details": True}, Shown.NEVER, False),
        ({"decoder_input_details": True, **BEST}, Shown.NEVER, True),
    ],
)
@pytest.mark.parametrize("mode", [LogprobsMode.PROCESSED, LogprobsMode.RAW])
def test_log_probabilities_are_computed_where_they_are_shown_or_rank_or_the_prompts_are_asked_for(
    parameters: Any, tokens: Shown, computed: bool, mode: LogprobsMode
) -> None:
    body: GenerateRequest = {"inputs": "Hi", "parameters": parameters}
    wanted = tgi.to_generate(body, LIMITS, id="r", draw=lambda: 1, logprobs=mode, tokens=tokens)
    assert {request.logprobs for request in wanted.requests} == {mode if computed else LogprobsMode.NONE}


@pytest.mark.parametrize(
    ("parameters", "tokens", "computed", "named"),
    [
        ({"top_n_tokens": 2}, Shown.ALWAYS, 2, False),
        ({"top_n_tokens": 2}, Shown.WITH_DETAILS, 0, True),
        ({"top_n_tokens": 2, **BEST}, Shown.WITH_DETAILS, 0, True),
        ({"top_n_tokens": 2, "details": True}, Shown.WITH_DETAILS, 2, False),
        ({"top_n_tokens": 2, "decoder_input_details": True}, Shown.WITH_DETAILS, 2, False),
        ({"top_n_tokens": 2, "details": True}, Shown.NEVER, 0, True),
        ({"top_n_tokens": 0}, Shown.WITH_DETAILS, 0, False),
        ({"top_n_tokens": None}, Shown.WITH_DETAILS, 0, False),
        (None, Shown.WITH_DETAILS, 0, False),
    ],
)
def test_alternatives_that_nothing_shows_are_named_and_not_computed(
    parameters: Any, tokens: Shown, computed: int, named: bool
) -> None:
    body: GenerateRequest = {"inputs": "Hi", "parameters": parameters}
    wanted = tgi.to_generate(body, LIMITS, id="r", draw=lambda: 1, tokens=tokens)
    assert {request.top_n_tokens for request in wanted.requests} == {computed}
    assert wanted.without_effect == (("parameters.top_n_tokens",) if named else ())


def test_alternatives_that_nothing_shows_are_checked_all_the_same() -> None:
    body: GenerateRequest = {"inputs": "Hi", "parameters": {"top_n_tokens": 6}}
    with pytest.raises(InvalidInput, match=r"^`top_n_tokens` must be >= 0 and <= 5\. Given: 6$"):
        tgi.to_generate(body, LIMITS, id="r", draw=lambda: 1, tokens=Shown.WITH_DETAILS)


def test_the_prompts_logprobs_are_for_servers_that_were_started_for_them() -> None:
    limits = replace(LIMITS, prefill_logprobs=False)
    body: GenerateRequest = {"inputs": "Hi", "parameters": {"decoder_input_details": True}}
    wanted = tgi.to_generate(body, limits, id="r", draw=lambda: 1)
    assert (wanted.details, wanted.requests[0].prompt_logprobs) == (True, False)


def test_nothing_is_computed_of_a_prompt_where_no_answer_shows_it() -> None:
    parameters: Any = {"decoder_input_details": True, **BEST}
    body: GenerateRequest = {"inputs": "Hi", "parameters": parameters}
    for tokens, computed in ((Shown.NEVER, False), (Shown.WITH_DETAILS, True)):
        wanted = tgi.to_generate(body, LIMITS, id="r", draw=lambda: 1, tokens=tokens)
        assert wanted.details
        assert {request.prompt_logprobs for request in wanted.requests} == {computed}


def test_a_route_can_sample_unless_told_otherwise() -> None:
    def samples(parameters: GenerateParameters | None) -> bool:
        body: GenerateInstance = {"inputs": "Hi", "parameters": parameters}
        return (
            tgi.to_generate(body, LIMITS, id="r", draw=lambda: 1, do_sample=True).requests[0].sampling.sample
        )

    assert [samples(None), samples({}), samples({"do_sample": False})] == [True, True, False]


def test_all_candidates_follow_the_grammar() -> None:
    wanted = understand({"best_of": 2, "do_sample": True, "grammar": {"type": "regex", "value": "a"}})
    assert [request.grammar is not None for request in wanted.requests] == [True, True]


def test_the_grammar_is_looked_at_last() -> None:
    bad = {"type": "json", "value": 3}
    with pytest.raises(InvalidInput, match="`top_k`"):
        understand({"grammar": bad, "top_k": 0})
    (request,) = understand({"grammar": bad}).requests
    assert isinstance(request.grammar, GrammarRefused), "the engine's to raise, after its own checks"
    assert str(request.grammar).startswith("grammar is not supported: `parameters.grammar.value`")


def test_nulls_mean_absent() -> None:
    names = ["best_of", "temperature", "repetition_penalty", "frequency_penalty", "top_k", "top_p"]
    names += ["typical_p", "max_new_tokens", "return_full_text", "truncate", "seed", "top_n_tokens"]
    names += ["min_p", "min_new_tokens", "ignore_eos", "logit_bias", "grammar"]
    assert understand({}) == understand(dict.fromkeys(names))


def test_the_candidates_of_best_of_differ_in_seed_and_name_only() -> None:
    first, second = understand({"best_of": 2, "do_sample": True}).requests
    assert first.id != second.id
    assert {first.sampling.seed, second.sampling.seed} == {100, 101}
    assert first.prompt == second.prompt


@pytest.mark.parametrize(
    ("asked", "default", "expected"),
    [(None, True, "Hi there"), (None, False, " there"), (True, False, "Hi there"), (False, True, " there")],
)
def test_the_prompt_comes_first_if_asked_for_or_if_the_route_says_so(
    sample: Any, asked: bool | None, default: bool, expected: str
) -> None:
    wanted = understand({"return_full_text": asked}, full_text=default)
    output = sample.output([sample.token(727, " there", -1.0)])
    assert tgi.to_body(wanted, [output]) == {"generated_text": expected}
    assert tgi.to_event(wanted, output[0])["generated_text"] == expected


def test_without_details_the_body_is_the_text_alone(sample: Any) -> None:
    output = sample.output([sample.token(727, " there", -1.0)])
    assert tgi.to_body(understand({}), [output]) == {"generated_text": " there"}


def test_details_are_told_as_tgi_tells_them(sample: Any, fits: Fits) -> None:
    tokens = [sample.token(727, " there", -1.0576172), sample.token(29892, ",", -0.5053711)]
    body = tgi.to_body(understand({"details": True, "top_n_tokens": 2}), [sample.output(tokens, top=True)])
    there = {"id": 727, "text": " there", "logprob": -1.0576172, "special": False}
    comma = {"id": 29892, "text": ",", "logprob": -0.5053711, "special": False}
    filtered = {"id": 5, "text": "x", "logprob": None, "special": False}
    assert body == {
        "generated_text": " there,",
        "details": {
            "finish_reason": "length",
            "generated_tokens": 2,
            "seed": None,
            "prefill": [],
            "tokens": [there, comma],
            "top_tokens": [[there, filtered], [comma, filtered]],
        },
    }
    assert fits("GenerateResponse", body)


def test_top_tokens_are_left_out_unless_asked_for(sample: Any) -> None:
    output = sample.output([sample.token(1, "a", -1.0)])
    wanted = understand({"details": True})
    assert "top_tokens" not in tgi.to_body(wanted, [output])["details"]
    assert "top_tokens" not in tgi.to_event(wanted, output[0])


def test_asking_for_the_prompts_tokens_implies_details(sample: Any, fits: Fits) -> None:
    prompt = (sample.prompt_token(1, "<s>", None), sample.prompt_token(6324, "Hi", -3.25))
    output = sample.output([sample.token(2, "a", -1.0)], prompt=prompt)
    body = tgi.to_body(understand({"decoder_input_details": True}), [output])
    assert body["details"]["prefill"] == [
        {"id": 1, "text": "<s>", "logprob": None},
        {"id": 6324, "text": "Hi", "logprob": -3.25},
    ]
    assert fits("GenerateResponse", body)


def test_the_candidate_with_the_highest_mean_logprob_wins(sample: Any, fits: Fits) -> None:
    unlikely = sample.output([sample.token(1, "a", -1.0), sample.token(1, "a", -3.0)], seed=1)
    likely = sample.output([sample.token(2, "b", -1.5), sample.token(2, "b", -1.5)], seed=2)
    short = sample.output([sample.token(3, "c", -1.75)], seed=3, reason=FinishReason.EOS)
    candidates = [unlikely, likely, short]
    outputs = [candidates[place] for place in tgi.winner_first(candidates)]
    body = tgi.to_body(understand({"best_of": 2, "do_sample": True, "details": True}), outputs)
    assert (body["generated_text"], body["details"]["seed"]) == ("bb", 2)
    losers = body["details"]["best_of_sequences"]
    assert [(loser["generated_text"], loser["seed"]) for loser in losers] == [("aa", 1), ("c", 3)]
    assert fits("GenerateResponse", body)


def test_an_output_that_is_alone_wins_whatever_stands_for_its_logprobs(sample: Any) -> None:
    output = sample.output([sample.token(1, "a", float("nan"))])
    assert tgi.winner_first([output]) == (0,)


def test_stream_events_have_nulls_until_the_last_one(sample: Any, fits: Fits) -> None:
    tokens = [sample.token(727, " there", -1.0576172), sample.token(2, "</s>", -0.01, special=True)]
    output = sample.output(tokens, reason=FinishReason.EOS)
    events = [tgi.to_event(understand({"details": True}), event) for event in output]
    assert events == [
        {
            "index": 1,
            "token": {"id": 727, "text": " there", "logprob": -1.0576172, "special": False},
            "generated_text": None,
            "details": None,
        },
        {
            "index": 2,
            "token": {"id": 2, "text": "</s>", "logprob": -0.01, "special": True},
            "generated_text": " there",
            "details": {"finish_reason": "eos_token", "generated_tokens": 2, "seed": None, "input_length": 2},
        },
    ]
    assert all(fits("StreamResponse", event) for event in events)


def test_stream_details_are_null_unless_asked_for(sample: Any) -> None:
    (event,) = sample.output([sample.token(1, "a", -1.0)], seed=8)
    assert tgi.to_event(understand({}), event)["details"] is None


def test_the_stop_sequence_stays_in_the_text(sample: Any) -> None:
    output = sample.output([sample.token(1, "a.", -1.0)], text_before_stop="a", reason=FinishReason.STOP)
    body = tgi.to_body(understand({"details": True}), [output])
    assert (body["generated_text"], body["details"]["finish_reason"]) == ("a.", "stop_sequence")
