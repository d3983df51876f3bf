"""What is compiled for a Hopper GPU once a model was rehearsed and serves: that should be nothing.

Launches compile and compute nothing, as in `hopper`: a model's numbers are no matter here. Nor is the code:
what is asked is for which forms the compiler is called. `hopper_cases` has it make code of the same kernels.

    python -m tests.unit.inference.kernels_gpu.hopper_steps
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

# First of all: it has to be said before triton is imported that nothing is interpreted
from tests.unit.inference.kernels_gpu import hopper  # isort: skip

import numpy as np
import torch

from codegen.toys import toy_model
from inference.gpu.batch import DeviceBatch, Draws, query_blocks
from inference.gpu.model import DeviceModel
from inference.gpu.ops import torch_ops, triton_ops
from inference.gpu.rehearsal import rehearse
from inference.gpu.slots import DeviceState, MirroredTable
from inference.loading.level import Options, bring_up
from tests.unit.inference.toy_models import FAMILIES, toy

PAGES = 33  # of a table: a width that is no multiple of anything
DECODES = (1, 2, 3, 8, 16, 17, 64, 256)
# Of numbers that real models have multiples of, which kernels are compiled for: toys have less
WIDE = {
    "youtu": {
        "num_key_value_heads": 4,
        "kv_lora_rank": 32,
        "q_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
    }
}
PROMPTS = ((2,), (5, 1, 1), (16,), (16, 16), (40, 3), (200,), (1, 1, 129))


def device_model(family: str) -> DeviceModel:
    """Return a toy as the ladder of a device makes it, over Triton's kernels."""
    options = Options(library=None, ops=torch_ops(), dtype=torch.bfloat16, max_total_tokens=PAGES * 16)
    own = toy_model(family) if family not in {*FAMILIES, *WIDE} else toy(family, **WIDE.get(family, {}))
    served = bring_up(own.bfloat16(), options)
    assert served.make_model is not None
    model = served.make_model(8)
    ops = triton_ops()
    if model.states is not None:
        model.states._ops = ops
        for part in (each for module in model.states._modules for each in vars(module).values()):
            if hasattr(part, "_ops"):
                part._ops = ops
    model.ops = model._multiply.ops = ops  # type: ignore[attr-defined, misc]
    if hasattr(model, "_model"):
        for module in model._model.modules():
            if hasattr(module, "_ops"):
                module._ops = ops
    return model


def steps(model: DeviceModel) -> Iterator[DeviceBatch]:
    """Yield steps of many sizes."""
    for count in DECODES:
        yield batch(model, (1,) * count)
    for sizes in PROMPTS:
        yield batch(model, sizes)


def batch(model: DeviceModel, sizes: tuple[int, ...]) -> DeviceBatch:
    """Return a step of pieces of so many tokens."""
    tokens, count, longest = sum(sizes), len(sizes), max(sizes)
    tile = model.tile(longest)
    starts = np.cumsum([0, *sizes])
    numbers = torch.arange(tokens)
    ints = {"dtype": torch.int32}
    return DeviceBatch(
        ids=numbers % 50,
        positions=numbers,
        places=numbers,
        tables=torch.zeros(300, PAGES, **ints),
        slots=torch.zeros(count, **ints),
        starts=torch.tensor(starts, **ints),
        lengths=torch.ones(count, **ints),
        query_blocks=torch.tensor(query_blocks(np.array(sizes), tile), **ints),
        tile=tile,
        rows=None if longest == 1 else torch.from_numpy(starts[1:] - 1),
        longest=longest,
        splits=model.splits(count, longest),
    )


@torch.inference_mode()
def main() -> None:
    """Print the kernels that a family's rehearsal compiled, and those that steps did after it."""
    hopper.stop_at_triton_ir()
    for family in sys.argv[1:]:
        model = device_model(family)
        with hopper.compiling(read=False) as compiled:
            rehearse(model, filters=True)
            rehearsed = len(compiled)
            for each in steps(model):
                logits = model.forward(each)
                rows = len(logits)
                zeros = torch.zeros(rows, dtype=torch.int64)
                model.ops.sample(logits, Draws(zeros, zeros, torch.ones(rows), zeros.bool()))
                state = DeviceState(MirroredTable(300, 1), logits.device, logits.shape[1])
                for ahead in (0, 1):
                    drawn = torch.zeros(rows, 2, dtype=torch.float64)
                    model.ops.shape(logits, state.wish(zeros.int(), ahead=ahead), drawn)
        known, late = compiled[:rehearsed], compiled[rehearsed:]
        names = " ".join(sorted({each.kernel for each in known}))
        print(f"{family}: {rehearsed} rehearsed: {names}")
        print(f"{family}: {len(late)} late: {' '.join(each.kernel for each in late)}", flush=True)


if __name__ == "__main__":
    main()
