"""A mixture of experts as a layer of C's stack has it: what chooses them, and they."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from torch import Tensor

from inference.kernels.choosing import SCORINGS, Choosing
from inference.kernels.native import PackedLinear
from inference.kernels.native_experts import PackedExperts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixtureWeights:
    """A layer's mixture; what experts give is added to what its MLP gives, if it has one."""

    router: PackedLinear  # hidden -> experts, and with `gated` one output more
    experts: PackedExperts
    choosing: Choosing
    correction: Tensor | None = None  # (experts,), float32
    gated: bool = False  # the MLP is multiplied by the sigmoid of the router's last output

    def check(self, hidden: int) -> None:
        """Assert that the parts fit each other: C would read past their ends."""
        count = len(self.experts.up)
        assert self.experts.hidden == hidden, "experts read and give what the layer does"
        assert (self.router.n, self.router.k) == (count + self.gated, hidden), "an output for each expert"
        assert self.choosing.fits(count), "there are as many experts as are chosen"
        assert self.correction is None or self.correction.shape == (count,), "a number for each expert"
        if self.choosing.scoring == "sparsemixer":
            assert self.correction is None, "its scores are what the router says"


class MixtureStruct(ctypes.Structure):
    """`Mixture` of mixture.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("router", "correction", "experts")),
        *((name, ctypes.c_int64) for name in ("gated", "scoring", "chosen", "groups", "kept", "best")),
        ("normalises", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("margin", ctypes.c_float),
    )

    @classmethod
    def of(cls, mixture: MixtureWeights, correction: int | None) -> MixtureStruct:
        """Return one; the caller keeps the mixture, and what lies at `correction`."""
        choosing = mixture.choosing
        return cls(
            ctypes.addressof(mixture.router.struct),
            correction,
            ctypes.addressof(mixture.experts.struct),
            mixture.gated,
            SCORINGS.index(choosing.scoring),
            choosing.chosen,
            choosing.groups,
            choosing.kept,
            choosing.best,
            choosing.normalises,
            choosing.scale,
            choosing.margin,
        )
