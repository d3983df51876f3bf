"""What `--quantize` asks for, beside what the files are: TGI's names say either how they are, or what to do.

A name that says how they are must be right. Of what can be done at the start there are 8 bits ("int8"),
which stand in for TGI's other ways to 8 bits, too, and bitsandbytes' two ways to 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from inference.errors import ModelUnavailable

if TYPE_CHECKING:
    from inference.quantised.stored import Stored

INT8 = "int8"
# The methods of files that each of TGI's names goes with; its kernels for GPTQ take AWQ, too
_METHODS: Mapping[str, tuple[str, ...]] = {
    "gptq": ("gptq", "awq"),
    "marlin": ("gptq", "awq"),
    "awq": ("awq",),
    "compressed-tensors": ("compressed-tensors",),
    "fp8": ("fp8", "fbgemm_fp8", "mxfp8", "modelopt", "compressed-tensors"),
    "bitsandbytes": ("bitsandbytes",),
    "bitsandbytes-nf4": ("bitsandbytes",),
    "bitsandbytes-fp4": ("bitsandbytes",),
    "eetq": (),
}
_EIGHT_BITS = ("bitsandbytes", "eetq", "fp8")  # done at the start by TGI
FOUR_BITS: Mapping[str, str] = {
    "bitsandbytes-nf4": "nf4",
    "bitsandbytes-fp4": "fp4",
}  # likewise, by what levels


def to_do(asked: str | None, stored: Stored | None, progress: Callable[[str], None]) -> str | None:
    """Return "int8" or one of FOUR_BITS if weights are to be rounded so, else None; raise ModelUnavailable.

    `asked` is the value of `--quantize`, `stored` what the files hold if they were quantised.
    """
    if asked in (None, INT8):
        return asked
    if stored is not None:
        if stored.method.name not in _METHODS[asked]:
            raise ModelUnavailable(
                f"--quantize {asked} isn't what the model's files were quantised by ({stored.method.said}): "
                "leave it out, the files say it themselves"
            )
        return None
    if asked in _EIGHT_BITS:
        progress(
            f"--quantize {asked}: the files aren't quantised, and their weights are rounded to 8 bits as by "
            f"--quantize {INT8}, each row of a matrix with a scale; texts may differ a little from {asked}'s"
        )
        return INT8
    if asked in FOUR_BITS:
        return asked
    raise ModelUnavailable(
        f"--quantize {asked}: the model's files aren't quantised: leave it out, give the model whose files "
        f"are, or {INT8}, which has them rounded"
    )
