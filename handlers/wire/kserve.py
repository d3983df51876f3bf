"""KServe's inference protocol, version 2: tensors of texts in, tensors of texts out.

https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md

TGI's form of a text is an array of its bytes; the protocol's own is an array of strings. Each input is
answered in the form it came in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from handlers.wire.outputs import Output, finish_of
from handlers.wire.tgi import Generate, to_details, to_text
from handlers.wire.types import (
    KserveInferOutput,
    KserveInferRequest,
    KserveInput,
    KserveModel,
    KserveOutput,
    KserveTensor,
)
from inference.errors import InvalidInput, Member

TENSOR: KserveTensor = {"name": "text", "datatype": "BYTES", "shape": [-1]}


class Unreadable(Exception):
    """The tensors can't be read; TGI has an `error_type` of its own for each reason."""

    def __init__(self, message: str, error_type: str) -> None:
        super().__init__(message)
        self.error_type = error_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An input understood: its texts, and how its output is to look."""

    name: str
    texts: tuple[str, ...]
    as_bytes: bool


def to_tensors(body: KserveInferRequest) -> tuple[Tensor, ...]:
    """Return the inputs with the names of their outputs; raise InvalidInput or Unreadable, in TGI's words."""
    inputs, outputs = body["inputs"], body.get("outputs")
    if not inputs:
        raise InvalidInput(Member("inputs"), " cannot be empty")
    if outputs is not None and len(outputs) != len(inputs):
        raise Unreadable("Inputs and outputs length mismatch", "length mismatch")
    named: Sequence[KserveInput | KserveOutput] = inputs if outputs is None else outputs
    return tuple(
        _tensor(item, named[at].get("name") or f"output{at}", f"inputs[{at}]")
        for at, item in enumerate(inputs)
    )


def place_of(body: KserveInferRequest, at: int, number: int) -> tuple[str | int, ...]:
    """Return the path to a text of an input: to its bytes where they are its data."""
    place, data = ("inputs", at, "data"), body["inputs"][at]["data"]
    within = next(islice(_places(data), number, None), ())
    return (*place, *within)


def to_output(tensor: Tensor, answers: Sequence[tuple[Generate, Output]]) -> KserveInferOutput:
    """Return the output of an input; with `details`, how its texts came about is a parameter of it."""
    texts = [to_text(wanted, finish_of(output)) for wanted, output in answers]
    data = list(texts[0].encode()) if tensor.as_bytes else texts
    shape = [1, len(data)] if tensor.as_bytes else [len(data)]
    told: KserveInferOutput = {"name": tensor.name, "shape": shape, "datatype": "BYTES", "data": data}
    if answers[0][0].details:
        told["parameters"] = {"details": [to_details(finish_of(output)) for _, output in answers]}
    return told


def metadata(name: str, version: str | None) -> KserveModel:
    """Return what the model takes and gives; TGI has `version` for what the protocol calls `versions`."""
    model: KserveModel = {
        "name": name,
        "platform": "parley",
        "extensions": ["infer", "ready"],
        "inputs": [TENSOR],
        "outputs": [TENSOR],
    }
    return model if version is None else {**model, "version": version, "versions": [version]}


def _tensor(given: KserveInput, name: str, place: str) -> Tensor:
    data = given["data"]
    elements = list(_flat(data))
    texts = tuple(element for element in elements if isinstance(element, str))
    if texts and len(texts) == len(elements):
        _check_shape(given.get("shape"), len(texts), place)
        return Tensor(name=name, texts=texts, as_bytes=False)
    numbers = [element for element in data if isinstance(element, int) and not isinstance(element, bool)]
    if len(numbers) != len(data):
        raise InvalidInput(
            Member(f"{place}.data"), " must be texts, or the bytes of one text as numbers from 0 to 255"
        )
    return Tensor(name=name, texts=(_decoded(numbers, place),), as_bytes=True)


def _flat(data: Iterable[object]) -> Iterator[object]:
    """Yield the elements of nested arrays, row by row."""
    rows = [iter(data)]
    while rows:
        for element in rows[-1]:
            if isinstance(element, list):
                rows.append(iter(element))
                break
            yield element
        else:
            rows.pop()


def _places(data: Sequence[object]) -> Iterator[tuple[int, ...]]:
    """Yield the path to each text in nested arrays, in their order."""
    rows = [enumerate(data)]
    path: list[int] = []
    while rows:
        for at, element in rows[-1]:
            if isinstance(element, list):
                path.append(at)
                rows.append(enumerate(element))
                break
            if isinstance(element, str):
                yield (*path, at)
        else:
            rows.pop()
            del path[-1:]


def _check_shape(shape: Sequence[int] | None, elements: int, place: str) -> None:
    if shape is None:
        return
    size = 0 if 0 in shape else 1
    for dimension in shape:
        size *= dimension
        if size > elements:  # enough is known, and a long shape's product could be a huge number
            break
    if size != elements:
        raise InvalidInput(
            Member(f"{place}.shape"), f" must hold as many elements as `{place}.data`, which are {elements}"
        )


def _decoded(data: Sequence[int], place: str) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"`{place}.data` is not UTF-8: {error}", "utf8") from None
