from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

import inference.kernels.gpu as package
from inference.kernels.gpu.launching import can_overlap, overlap_kernels
from inference.kernels.gpu.linear import Tile, small_linear
from inference.kernels.gpu.norm import add_rms_norm, rms_norm
from inference.kernels.gpu.overlap import bytes_asked
from tests.unit.inference.triton_device import DEVICE

MODULES = sorted(Path(package.__path__[0]).glob("*.py"))


def kernels() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the kernels that may come up early."""
    for module in MODULES:
        for function in ast.walk(ast.parse(module.read_text())):
            if not isinstance(function, ast.FunctionDef) or module.stem == "overlap":
                continue
            if "OVERLAPS" in [argument.arg for argument in function.args.args]:
                yield f"{module.stem}.{function.name}", function


KERNELS = dict(kernels())


def test_those_of_a_decode_are_among_them() -> None:
    decode = {
        "slots._gather",
        "norm._norm",
        "linear._row",
        "linear._rows",
        "linear._add_parts",
        "rope._rotate_and_write",
    }
    decode |= {"attention._attend", "attention._merge", "gated_linear._gated_row", "gated_linear._gated_rows"}
    decode |= {"activation._gate", "sampling._search", "sampling._combine", "slots._scatter"}
    assert decode <= KERNELS.keys()


@pytest.mark.parametrize("name", KERNELS)
def test_every_program_waits_before_it_reads_what_others_write_writes_or_ends(name: str) -> None:
    """Who waits for a kernel counts on its programs having waited for those before it."""
    waits = [
        at for at, line in enumerate(KERNELS[name].body) if ast.unparse(line) == "await_earlier(OVERLAPS)"
    ]
    assert 1 == len(waits), "it waits once, whatever is true of a program"
    before = [node for line in KERNELS[name].body[: waits[0]] for node in ast.walk(line)]
    assert not any(isinstance(node, ast.Return) for node in before)
    calls = [node for node in before if isinstance(node, ast.Call)]
    assert not any(ast.unparse(call.func) == "tl.store" for call in calls)
    read = [ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func) == "tl.load"]
    assert all(each.startswith("weight_ptr") for each in read), "only weights are written by nobody"


@triton.jit
def _ask(left: tl.tensor, asked: tl.tensor, BYTES: tl.constexpr) -> None:
    at = tl.program_id(0)
    tl.store(asked + at, bytes_asked(tl.load(left + at), 2, BYTES))


def test_nothing_is_asked_of_rows_behind_their_end() -> None:
    """Where the inner dimension is divided, the last parts may be empty, or begin behind it."""
    left = torch.tensor([-1024, -1, 0, 8, 512, 513, 1 << 20], dtype=torch.int32, device=DEVICE)
    asked = torch.full_like(left, -1)
    _ask[(len(left),)](left, asked, BYTES=1024)
    assert asked.tolist() == [0, 0, 0, 16, 1024, 1024, 1024]


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True])
def test_what_is_computed_is_the_same_with_kernels_that_come_up_early(graph: bool) -> None:
    """Kernels that read too early would read what the turn before has left, which is another's."""
    if not can_overlap():
        pytest.skip("this GPU's kernels come up one after the other")
    width, turns = 512, 40
    weights = [torch.randn(width, width, device=DEVICE).bfloat16() / 16 for _ in range(4)]
    scale, tile = torch.ones(width, device=DEVICE), Tile(2, 512, 1, False)
    start = torch.randn(turns, 1, width, device=DEVICE).bfloat16()
    given = torch.empty_like(start[0])
    parts = [torch.empty_like(given) for _ in range(3)]

    def run() -> None:
        stream = given
        for weight in weights * 4:
            rms_norm(stream, scale, 1e-6, out=parts[0])
            small_linear(parts[0], weight, None, tile=tile, out=parts[1])
            _, stream = add_rms_norm(parts[1], stream, scale, 1e-6)
        parts[2].copy_(stream)

    found = []
    try:
        for wanted in (False, True):
            overlap_kernels(wanted=wanted)
            run()
            torch.cuda.synchronize()
            again = torch.cuda.CUDAGraph()
            if graph:
                with torch.cuda.graph(again):
                    run()
            texts = []
            for each in start:
                given.copy_(each)
                again.replay() if graph else run()
                texts.append(parts[2].clone())
            found.append(torch.cat(texts))
    finally:
        overlap_kernels(wanted=True)
    assert torch.equal(*found)
    assert torch.isfinite(found[0]).all()
