from __future__ import annotations

import math
import struct
from collections.abc import ItemsView
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.wire.limits import Limits
from handlers.wire.parameters import (
    Parameters,
    all_shortest,
    check,
    sampling,
    samplings,
    several,
    shortest,
    single,
)
from inference.errors import InvalidInput
from inference.types import Watermark

LIMITS = Limits(max_best_of=2, max_stop_sequences=4, max_top_n_tokens=5)

REFUSED = [  # in TGI's order: what is given, what is said
    ({"best_of": 2}, "you must use sampling when `best_of` is > 1"),
    ({"temperature": 0.0}, "`temperature` must be strictly positive"),
    ({"repetition_penalty": 0.0}, "`repetition_penalty` must be strictly positive"),
    ({"frequency_penalty": -2.1}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    ({"presence_penalty": 2.1}, "`presence_penalty` must be >= -2.0 and <= 2.0"),
    ({"top_p": 0.0}, "`top_p` must be > 0.0 and < 1.0"),
    ({"typical_p": 1.5}, "`typical_p` must be > 0.0 and < 1.0"),
    ({"top_k": 0}, "`top_k` must be strictly positive"),
    ({"max_new_tokens": 0}, "`max_new_tokens` must be strictly positive"),
    ({"stop": ("a", "b", "c", "d", "e")}, "`stop` supports up to 4 stop sequences. Given: 5"),
    ({"best_of": 2, "seed": 1, "do_sample": True}, "`seed` must not be set when `best_of` > 1"),
    ({"top_n_tokens": 6}, "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
    ({"min_p": -0.1}, "`min_p` must be >= 0.0 and <= 1.0"),
    ({"min_p": 1.1}, "`min_p` must be >= 0.0 and <= 1.0"),
    (
        {"min_new_tokens": 3, "max_new_tokens": 2},
        "`min_new_tokens` (`min_tokens`) must be <= `max_new_tokens` (`max_tokens`). Given: 3 and 2",
    ),
    ({"logit_bias": {"5": 101}}, "`logit_bias` of token 5 must be >= -100 and <= 100. Given: 101"),
]


@pytest.mark.parametrize(("wrong", "message"), REFUSED)
def test_a_value_out_of_range_is_refused_in_tgis_words(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check(Parameters(**wrong), LIMITS)
    assert str(refusal.value) == message


def test_of_several_faults_the_first_in_tgis_order_is_reported() -> None:
    parameters = Parameters(
        best_of=2,
        temperature=-1.0,
        repetition_penalty=0.0,
        frequency_penalty=3.0,
        presence_penalty=3.0,
        top_p=2.0,
        typical_p=0.0,
        top_k=0,
        max_new_tokens=0,
        stop=("x",) * 5,
        seed=0,
        top_n_tokens=9,
        min_p=2.0,
        min_new_tokens=1,
        logit_bias=[-200],
    )
    repairs: list[dict[str, Any]] = [
        {"temperature": None},
        {"repetition_penalty": None},
        {"frequency_penalty": None},
        {"presence_penalty": None},
        {"top_p": None},
        {"typical_p": None},
        {"top_k": None},
        {"max_new_tokens": None},
        {"stop": ()},
        {"seed": None},
        {"top_n_tokens": None},
        {"min_p": None},
        {"logit_bias": None},
    ]
    seen = []
    for repair in repairs:
        with pytest.raises(InvalidInput) as refusal:
            check(parameters, LIMITS)
        seen.append(str(refusal.value).split("`")[1])
        parameters = replace(parameters, do_sample=True, **repair)
    check(parameters, LIMITS)
    assert seen == [next(iter(repair)) for repair in repairs]


@pytest.mark.parametrize(
    "mention", [{"temperature": 1.0}, {"top_k": 3}, {"top_p": 1.0}, {"typical_p": 0.5}, {"min_p": 0.0}]
)
def test_best_of_takes_any_mention_of_sampling_for_sampling(mention: dict[str, Any]) -> None:
    check(Parameters(best_of=2, **mention), LIMITS)


@pytest.mark.parametrize(
    "bounds",
    [
        {"frequency_penalty": -2.0, "presence_penalty": -2.0, "top_k": 1, "max_new_tokens": 1},
        {"frequency_penalty": 2.0, "presence_penalty": 2.0, "top_p": 1.0, "typical_p": 1.0, "seed": 0},
        {"stop": ("a", "b", "c", "d"), "top_n_tokens": 5, "max_new_tokens": 2**32 - 1},
        {"min_p": 0.0, "min_new_tokens": 5, "max_new_tokens": 5, "logit_bias": [-100, 100]},
        {"min_p": 1.0, "min_new_tokens": 2**32 - 1},
    ],
)
def test_values_at_their_bounds_are_accepted(bounds: dict[str, Any]) -> None:
    check(Parameters(**bounds), LIMITS)


@pytest.mark.parametrize(
    ("parameters", "samples"),
    [
        (Parameters(), False),
        (Parameters(do_sample=True), True),
        (Parameters(temperature=1.0), False),
        (Parameters(temperature=0.7), True),
        (Parameters(top_k=1), True),
        (Parameters(top_p=1.0), False),
        (Parameters(top_p=0.9), True),
        (Parameters(typical_p=1.0), False),
        (Parameters(typical_p=0.9), True),
        (Parameters(min_p=0.0), False),
        (Parameters(min_p=0.1), True),
        (Parameters(repetition_penalty=1.2, frequency_penalty=1.0, seed=7), False),
        (Parameters(do_sample=True, top_p=0.9, greedy=True), False),
    ],
)
def test_sampling_is_on_as_soon_as_a_parameter_calls_for_it(parameters: Parameters, samples: bool) -> None:
    assert samples == sampling(parameters, lambda: 1).sample


def test_no_filter_takes_the_likeliest_token_from_a_greedy_text() -> None:
    asked = Parameters(typical_p=0.2, top_k=3, top_p=0.9, min_p=0.1)
    assert sampling(asked, lambda: 1).typical_p == 0.2
    chosen = sampling(replace(asked, greedy=True), lambda: 1)
    assert (chosen.sample, chosen.typical_p, chosen.top_k, chosen.top_p, chosen.min_p) == (
        False,
        1.0,
        3,
        0.9,
        0.1,
    )


def test_a_seed_is_drawn_only_where_one_is_needed_and_missing() -> None:
    assert sampling(Parameters(do_sample=True), lambda: 2**64 - 1).seed == 2**64 - 1
    assert sampling(Parameters(do_sample=True, seed=0), lambda: 5).seed == 0
    assert sampling(Parameters(), lambda: 5).seed == 0


def test_texts_side_by_side_differ_in_their_seeds() -> None:
    drawn = iter(range(100, 200))
    made = samplings(Parameters(do_sample=True), lambda: next(drawn), 3)
    assert [each.seed for each in made] == [100, 101, 102]
    made = samplings(Parameters(do_sample=True, seed=2**64 - 2), lambda: next(drawn), 3)
    assert [each.seed for each in made] == [2**64 - 2, 2**64 - 1, 0]
    made = samplings(Parameters(seed=7, top_k=2), lambda: next(drawn), 2)
    assert [(each.seed, each.top_k) for each in made] == [(7, 2), (8, 2)]


def test_the_likeliest_text_is_the_same_side_by_side() -> None:
    first, second = samplings(Parameters(seed=7), lambda: 1, 2)
    assert (first, first.sample) == (second, False)


def test_every_parameter_of_sampling_is_passed_on() -> None:
    made = sampling(
        Parameters(
            temperature=0.5,
            top_k=3,
            top_p=0.25,
            typical_p=0.75,
            min_p=0.125,
            logit_bias={"7": -1.5, "3": 2},
            watermark=Watermark(gamma=0.25, delta=1.0),
            repetition_penalty=1.5,
            frequency_penalty=0.5,
            presence_penalty=-0.5,
            seed=9,
        ),
        lambda: 0,
    )
    assert (made.temperature, made.top_k, made.top_p, made.typical_p) == (0.5, 3, 0.25, 0.75)
    assert (made.min_p, made.logit_bias) == (0.125, ((3, 2.0), (7, -1.5)))
    assert made.watermark == Watermark(gamma=0.25, delta=1.0)
    assert (made.repetition_penalty, made.frequency_penalty, made.presence_penalty, made.seed) == (
        1.5,
        0.5,
        -0.5,
        9,
    )


class Counted(dict[str, float]):
    """Biases that count how often they are read."""

    def __init__(self, biases: dict[str, float]) -> None:
        super().__init__(biases)
        self.readings = 0

    def items(self) -> ItemsView[str, float]:  # type: ignore[override]
        self.readings += 1
        return super().items()


def test_biases_are_read_once_however_many_texts_are_asked_for() -> None:
    biases = Counted({"7": -1.5})
    parameters = Parameters(logit_bias=biases, do_sample=True)
    check(parameters, LIMITS)
    made = [*samplings(parameters, lambda: 1, 2), sampling(parameters, lambda: 1)]
    assert [each.logit_bias for each in made] == [((7, -1.5),)] * 3
    assert biases.readings == 1
    assert replace(parameters, logit_bias={"8": 1}).biases() == ((8, 1.0),)


def test_stop_sequences_may_be_one_text_a_list_or_nothing() -> None:
    assert [several("ab"), several(["a", "b"]), several([]), several(None)] == [("ab",), ("a", "b"), (), ()]


def test_what_underflows_in_float32_is_the_zero_that_the_engine_would_see() -> None:
    assert single(1e-60) == 0.0
    assert single(None) is None
    assert math.isfinite(single(1e300) or math.inf)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_logprob_prints_as_the_shortest_decimal_of_its_float32(number: float) -> None:
    printed = shortest(number)
    assert printed is not None
    assert struct.pack("f", printed) == struct.pack("f", number)
    digits = repr(printed).split("e")[0].strip("-0.").replace(".", "")
    assert len(digits) <= 9  # no float32 needs more


def test_a_known_logprob_prints_as_tgi_prints_it() -> None:
    assert repr(shortest(struct.unpack("f", struct.pack("f", -0.22558594))[0])) == "-0.22558594"


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_number_that_json_has_no_word_for_is_null(number: float) -> None:
    assert shortest(number) is None


@given(st.lists(st.floats(width=32)))
def test_many_numbers_are_shortened_as_each_is(numbers: list[float]) -> None:
    assert all_shortest(numbers) == [shortest(number) for number in numbers]
