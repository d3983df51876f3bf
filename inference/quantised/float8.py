"""FP8 as DeepSeek, vLLM, fbgemm and ModelOpt store it: a weight of 8 bits, and its scales beside it."""

from __future__ import annotations

from inference.quantised.expansion import Found, Table
from inference.quantised.method import Method
from inference.quantised.scaled import FP8, Block, packed_fp4, scaled

_SCALES = ("_scale_inv", "_scale")  # what a weight's name has with them; both are multiplied with
# Of inputs and of the cache, which are computed in more bits here
IDLE = (".input_scale", ".activation_scale", ".input_scale_ub", ".k_scale", ".v_scale", ".output_scale")
_BLOCK = (128, 128)
_MX_BLOCK = (1, 32)
_NV_GROUP = 16


def find(table: Table, method: Method) -> Found:
    """Return the weights that a checkpoint of FP8 holds; raise ModelUnavailable."""
    found = Found()
    block = _block(method)
    for name, tensor in table.tensors.items():
        if name.endswith(IDLE):
            found.idle.add(name)
        elif tensor.dtype in FP8 and not name.endswith(_SCALES):
            scale = next((name + each for each in _SCALES if name + each in table.tensors), None)
            if scale is None:
                raise table.refusal(f"lack `{name}{_SCALES[0]}`, the scale of `{name}`")
            found.weights[name] = scaled(table, name, scale, block)
    found.notes.add(f"blocks of {block[0]}x{block[1]}" if block else "scales by tensors or rows")
    return found


def find_modelopt(table: Table, method: Method) -> Found:
    """Return the weights that a checkpoint of ModelOpt holds, in FP8 or NVFP4; raise ModelUnavailable."""
    kind = method.word("quant_algo", default="fp8")
    if kind not in ("fp8", "nvfp4"):
        raise method.variant(f"and its `quant_algo` {kind!r}")
    found = find(table, method) if kind == "fp8" else Found()
    if kind == "nvfp4":
        for name, prefix in table.ending(".weight_scale_2"):
            found.weights[f"{prefix}.weight"] = packed_fp4(
                table, f"{prefix}.weight", f"{prefix}.weight_scale", _NV_GROUP, name, divide=False
            )
        found.idle.update(name for name in table.tensors if name.endswith(IDLE))
        found.notes.add(f"NVFP4 in groups of {_NV_GROUP}")
    return found


def _block(method: Method) -> Block | None:
    if method.name == "mxfp8":
        return _MX_BLOCK
    given = method.settings.get("weight_block_size")
    if given is None or method.name != "fp8":
        return None
    sizes = given if isinstance(given, list) and len(given) == 2 else [0]
    if not all(type(each) is int and 0 < each < 2**24 for each in sizes):
        raise method.variant(f"and its `weight_block_size` {given!r:.60}")
    return sizes[0], sizes[1]
