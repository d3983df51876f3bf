"""What a model computes before and after its decoder layers, read off a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import PreTrainedModel

from inference.kernels.native import WeightKind
from inference.kernels.native_model import EndWeights
from inference.kernels.native_screen import Screen
from inference.models.layers import OtherShape, norm_weight
from inference.models.linears import NativeLinear, NativePack, drop_weight, weight_and_bias
from inference.models.share import Share
from inference.models.trace import Trace
from inference.models.weights import NarrowEmbedding, NarrowLinear

_SAME = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # of the largest number


@dataclass(frozen=True, slots=True)
class Factors:
    """What is multiplied around the layers."""

    embedding: float
    head: float  # of what the head is given
    logits: float
    cap: float | None  # logits become cap * tanh(logits / cap)


@dataclass(frozen=True, slots=True, eq=False)
class Bare:
    """The ends while the head is still the model's own."""

    model: PreTrainedModel
    norm: Tensor  # (hidden,)
    eps: float
    factors: Factors

    def pack(self, pack: NativePack, share: Share | None = None) -> Ends:
        """Return the ends with a packed head, or a share of it.

        It is the embedding too if they are one, all of it is here and it is exact.
        """
        head, table = self.model.get_output_embeddings(), self.model.get_input_embeddings()
        tied = head.weight is table.weight and share is None
        own = weight_and_bias(head)
        packed = pack(*(own if share is None else share.head(*own)))
        drop_weight(head)
        if not tied or packed.packed.kind is WeightKind.INT8:
            return Ends(self, packed, table.weight.detach())
        drop_weight(table)
        return Ends(self, packed, None)


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """The embedding, the last norm and the head."""

    bare: Bare
    head: NativeLinear
    table: Tensor | None  # (vocabulary, hidden), maybe in 16 bits; None: it is the head's weight
    screen: Screen | None = None  # of the head

    @property
    def weights(self) -> EndWeights:
        """Return what C computes of them: all but what is done with the logits."""
        bare, factors = self.bare, self.bare.factors
        return EndWeights(
            table=self.head.packed if self.table is None else self.table,
            head=self.head.packed,
            norm=bare.norm,
            eps=bare.eps,
            embedding_factor=factors.embedding,
            head_factor=factors.head,
            screen=self.screen,
        )

    @property
    def finishes(self) -> bool:
        """Return whether anything is done with the logits."""
        return self.bare.factors.logits != 1.0 or self.bare.factors.cap is not None

    def screened(self) -> Ends:
        """Return the same with a screen of the head, where that is of use."""
        return self if self.finishes else replace(self, screen=Screen.of(self.head.packed))

    def finish(self, logits: Tensor) -> Tensor:
        """Do with the head's logits (rows, vocabulary), in place, what the model does with them."""
        factors = self.bare.factors
        if factors.logits != 1.0:
            logits *= factors.logits
        if factors.cap is not None:
            for row in logits:  # one by one: torch computes a tensor's last few numbers by other code
                row.div_(factors.cap).tanh_().mul_(factors.cap)
        return logits

    def undo(self) -> None:
        """Put the model's own head and embedding back."""
        head = self.head.unpack()
        self.bare.model.set_output_embeddings(head)
        if self.table is None:
            self.bare.model.get_input_embeddings().weight = head.weight


def lookup(model: PreTrainedModel, prompt: NDArray[np.int64]) -> Tensor:
    """Return the rows of a prompt in the embedding's table, (tokens, hidden) in float32; raise OtherShape."""
    table = model.get_input_embeddings()
    if not isinstance(table, nn.Embedding | NarrowEmbedding):
        raise OtherShape("its embedding is no table")
    weight = table.weight.detach()
    return embedding(torch.from_numpy(prompt).to(weight.device), weight).float()


def read_ends(model: PreTrainedModel, trace: Trace, rows: Tensor) -> Bare:
    """Return what is around the layers; `rows`: what the table has for the trace's prompt.

    Raises OtherShape if it is anything else than factors, a root-mean-square norm and a head.
    """
    if type(model.get_output_embeddings()) not in (nn.Linear, NarrowLinear):
        raise OtherShape("its head is no plain linear")
    norm, eps = norm_weight(trace.final)
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    head_factor = _factor(trace.normed, trace.head_given, "between its last norm and its head")
    capped = _is_near(trace.logits, trace.head_result, lambda x: torch.tanh(x / cap) * cap) if cap else False
    factors = Factors(
        embedding=_factor(rows, trace.layers[0].given, "between its embedding and its layers"),
        head=head_factor,
        logits=1.0 if capped else _factor(trace.head_result, trace.logits, "after its head"),
        cap=float(cap) if cap and capped else None,
    )
    return Bare(model, norm, eps, factors)


def _factor(given: Tensor, result: Tensor, where: str) -> float:
    """Return what `given` was multiplied with; raise OtherShape if it was something else."""
    if torch.equal(given.to(result.dtype), result):
        return 1.0
    factor = float((given.double() * result.double()).sum() / given.double().square().sum())
    rounded = float(torch.tensor(factor, dtype=result.dtype))  # as models with weights in 16 bits keep it
    if torch.equal((given * rounded).to(result.dtype), result):
        return rounded
    if not _is_near(result, given, lambda x: x * factor):
        raise OtherShape(f"something is computed {where}")
    return 1.0 if abs(factor - 1) <= _SAME[torch.float32] else factor


def _is_near(result: Tensor, given: Tensor, function: Callable[[Tensor], Tensor]) -> bool:
    same = _SAME[result.dtype]
    return bool((function(given.float()) - result.float()).abs().max() <= same * result.abs().max())
