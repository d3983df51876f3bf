"""What a model may be served by, and in which numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from inference.kernels.native import Library
from inference.models.lora import Adaptable, Adapters

if TYPE_CHECKING:
    from inference.gpu.ops import Ops
    from inference.shards.group import Group
    from inference.vision.model import Vision


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What may be used."""

    library: Library | None  # the C extension
    without: str = ""  # why it isn't there
    ops: Ops | None = None  # what computes on a device: its ladder; None: the CPU's
    fuse: bool = True
    merge: bool = True
    group_experts: bool = True  # a device multiplies a mixture's by kernels of its own
    narrow: bool = True
    compress: bool = True  # 16-bit weights, where that loses nothing
    latents: bool = True  # latent attention keeps those alone in its cache
    screen: bool = False  # a head, by a copy in int8 or int6
    trim: bool = True  # the last layer, of tokens without logits
    quantize: bool = False  # to int8
    round_inputs: bool = False  # of linears, to bfloat16
    dtype: torch.dtype = torch.float32  # what is computed in
    kv_dtype: torch.dtype = torch.float32  # of the native kernels' KV cache; others' is `dtype`
    kv_dtype_asked: bool = False  # a level with another one won't do
    max_total_tokens: int = 2048
    filter_on_device: bool = True  # what chooses tokens there is rehearsed with the rest
    adapters: Adapters | None = None
    adaptable: Adaptable | None = None  # more of them are loaded while it runs, for these linears
    group: Group | None = None  # of processes that have a share each of the model: level `fused`, or none
    vision: Vision | None = None  # there if the model sees

    @property
    def rounds_linears(self) -> bool:
        """Return whether what linears multiply is rounded, so that nearly right will do."""
        return self.quantize or self.round_inputs
