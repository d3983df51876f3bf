from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.wire.biases import MOST_BIASES, logit_bias
from inference.errors import InvalidInput

BIASES = st.floats(-100, 100)


@given(st.dictionaries(st.integers(0, 2**32 - 1), BIASES, max_size=8))
def test_an_object_names_tokens_by_their_ids(biases: dict[int, float]) -> None:
    made = logit_bias({str(token_id): bias for token_id, bias in biases.items()})
    assert dict(made) == {token_id: bias for token_id, bias in biases.items() if bias}
    assert [token_id for token_id, _ in made] == sorted(token_id for token_id, _ in made)


@given(st.lists(BIASES, max_size=8))
def test_an_array_means_the_tokens_from_0_on(biases: list[float]) -> None:
    assert logit_bias(biases) == logit_bias({str(place): bias for place, bias in enumerate(biases)})


@pytest.mark.parametrize("nothing", [None, {}, [], {"5": 0}, [0, 0.0, -0.0]])
def test_no_bias_at_all(nothing: Any) -> None:
    assert logit_bias(nothing) == ()


def test_zeros_of_a_long_array_are_no_biases() -> None:
    assert len(logit_bias([*[0] * 100_000, *[1.5] * MOST_BIASES])) == MOST_BIASES


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"5": 100.5}, "`logit_bias` of token 5 must be >= -100 and <= 100. Given: 100.5"),
        ([0, -101], "`logit_bias` of token 1 must be >= -100 and <= 100. Given: -101"),
        ({"the": 1}, '`logit_bias` names tokens by their ids in decimal. Given: "the"'),
        ({"": 1}, '`logit_bias` names tokens by their ids in decimal. Given: ""'),
        ({"-1": 1}, '`logit_bias` names tokens by their ids in decimal. Given: "-1"'),
        ({"05": 1}, '`logit_bias` names tokens by their ids in decimal. Given: "05"'),
        ({"٣": 1}, '`logit_bias` names tokens by their ids in decimal. Given: "٣"'),
        ({"9" * 99: 1}, f'`logit_bias` names tokens by their ids in decimal. Given: "{"9" * 40}…"'),
        (
            [0.5] * (MOST_BIASES + 1),
            "`logit_bias` must have at most 32768 biases other than 0. Given: 32769. Send fewer",
        ),
    ],
)
def test_a_wrong_bias_is_refused_by_its_name(given: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        logit_bias(given)
    assert str(refusal.value) == message
