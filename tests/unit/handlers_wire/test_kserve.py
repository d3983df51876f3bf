from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.wire import kserve as wire
from handlers.wire import tgi
from handlers.wire.kserve import Tensor
from handlers.wire.limits import Limits
from handlers.wire.types import KserveInput, KserveOutput
from inference.errors import InvalidInput

LIMITS = Limits(max_best_of=2, max_stop_sequences=4, max_top_n_tokens=5)


def only(**members: Any) -> Tensor:
    tensor: Any = members
    (understood,) = wire.to_tensors({"inputs": [tensor]})
    return understood


def wanted(**parameters: Any) -> tgi.Generate:
    body: Any = {"inputs": "x", "parameters": parameters}
    return tgi.to_generate(body, LIMITS, id="r", draw=lambda: 1)


@given(st.text(min_size=1))
def test_bytes_are_one_text(text: str) -> None:
    expected = Tensor(name="in", texts=(text,), as_bytes=True)
    assert only(name="in", data=list(text.encode()), shape=[1], datatype="BYTES") == expected


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        (None, ["a", "b"]),
        ([2], ["a", "b"]),
        ([1, 2], ["a", "b"]),
        ([2, 1], [["a"], ["b"]]),
        ([1, 2, 1], [[["a"], ["b"]]]),
    ],
)
def test_texts_are_read_row_by_row(shape: list[int] | None, data: list[Any]) -> None:
    assert only(data=data, shape=shape) == Tensor(name="output0", texts=("a", "b"), as_bytes=False)


def test_outputs_are_named_by_the_request_or_as_their_inputs() -> None:
    inputs: list[KserveInput] = [{"name": "a", "data": ["x"]}, {"data": ["y"]}]
    assert [tensor.name for tensor in wire.to_tensors({"inputs": inputs})] == ["a", "output1"]
    outputs: list[KserveOutput] = [{"name": "one"}, {"name": "two"}]
    tensors = wire.to_tensors({"inputs": inputs, "outputs": outputs})
    assert [tensor.name for tensor in tensors] == ["one", "two"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"data": ["a"], "shape": [2]},
            "`inputs[0].shape` must hold as many elements as `inputs[0].data`, which are 1",
        ),
        (
            {"data": ["a"], "shape": [0, 2**63]},
            "`inputs[0].shape` must hold as many elements as `inputs[0].data`, which are 1",
        ),
        (
            {"data": ["a"], "shape": [2**63] * 1000},
            "`inputs[0].shape` must hold as many elements as `inputs[0].data`, which are 1",
        ),
        (
            {"data": ["a", 66]},
            "`inputs[0].data` must be texts, or the bytes of one text as numbers from 0 to 255",
        ),
        (
            {"data": [[72], [73]]},
            "`inputs[0].data` must be texts, or the bytes of one text as numbers from 0 to 255",
        ),
    ],
)
def test_tensors_that_are_neither_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        only(**given)
    assert str(refusal.value) == message


def test_tgis_own_refusals_have_its_error_types() -> None:
    with pytest.raises(wire.Unreadable, match=r"^Inputs and outputs length mismatch$") as mismatch:
        wire.to_tensors({"inputs": [{"data": ["a"]}], "outputs": []})
    with pytest.raises(wire.Unreadable, match=r"^`inputs\[0\].data` is not UTF-8: ") as utf8:
        only(data=[255])
    assert (mismatch.value.error_type, utf8.value.error_type) == ("length mismatch", "utf8")
    with pytest.raises(InvalidInput, match=r"^`inputs` cannot be empty$"):
        wire.to_tensors({"inputs": []})


def test_each_input_is_answered_in_its_own_form(sample: Any) -> None:
    answer = (wanted(), sample.output([sample.token(1, "é", -1.0)]))
    assert wire.to_output(Tensor(name="t", texts=("x",), as_bytes=True), [answer]) == {
        "name": "t",
        "shape": [1, 2],
        "datatype": "BYTES",
        "data": [195, 169],
    }
    assert wire.to_output(Tensor(name="t", texts=("x", "x"), as_bytes=False), [answer, answer]) == {
        "name": "t",
        "shape": [2],
        "datatype": "BYTES",
        "data": ["é", "é"],
    }


def test_details_are_parameters_of_the_output(sample: Any) -> None:
    answer = (wanted(details=True), sample.output([sample.token(1, "a", -1.0)], seed=3))
    output = wire.to_output(Tensor(name="t", texts=("x",), as_bytes=True), [answer])
    details = {"finish_reason": "length", "generated_tokens": 1, "seed": 3, "input_length": 2}
    assert output["parameters"] == {"details": [details]}


def test_the_full_text_can_be_asked_for(sample: Any) -> None:
    answer = (wanted(return_full_text=True), sample.output([sample.token(1, "a", -1.0)]))
    assert wire.to_output(Tensor(name="t", texts=("x",), as_bytes=False), [answer])["data"] == ["xa"]
