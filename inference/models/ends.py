"""What a model computes before and after its decoder layers, read off a trace."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import PreTrainedModel

from inference.kernels.native import WeightKind
from inference.kernels.native_model import EndWeights
from inference.kernels.native_screen import Screen
from inference.models.added import NOTHING, Added, factor_of, find_added, is_near
from inference.models.linears import NativeLinear, NativePack, drop_weight, weight_and_bias
from inference.models.norms import read_norm
from inference.models.other_shape import OtherShape
from inference.models.per_layer import PerLayerEnds
from inference.models.share import Share
from inference.models.trace import Trace
from inference.models.weights import NarrowEmbedding, NarrowLinear


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
    norm: Tensor  # as in `Norm`
    eps: float
    factors: Factors
    centred: bool = False  # the last norm is
    added: Added = NOTHING
    per_layer: PerLayerEnds | None = None
    replaced: dict[int, int] = field(default_factory=dict)  # ids by those that they are taken for

    def pack(self, pack: NativePack, share: Share | None = None) -> Ends:
        """Return the ends with a packed head, or a share of it.

        It is the embedding too if they are one, all of it is here and it is exact.
        """
        head, table = self.model.get_output_embeddings(), self.model.get_input_embeddings()
        tied = head.weight is table.weight and share is None
        own = weight_and_bias(head)
        packed = pack(*(own if share is None else share.head(*own)))
        inputs = None if self.per_layer is None else self.per_layer.pack(pack)  # whose weight it frees
        drop_weight(head)
        if not tied or packed.packed.kind is WeightKind.INT8:
            return Ends(self, packed, table.weight.detach(), inputs=inputs)
        drop_weight(table)
        return Ends(self, packed, None, inputs=inputs)


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """The embedding, the last norm and the head."""

    bare: Bare
    head: NativeLinear
    table: Tensor | None  # (vocabulary, hidden), maybe in 16 bits; None: it is the head's weight
    screen: Screen | None = None  # of the head
    inputs: NativeLinear | None = None  # that makes layers' own inputs

    @property
    def weights(self) -> EndWeights:
        """Return what C computes of them: all but what is done with the logits."""
        bare, factors = self.bare, self.bare.factors
        own = None if bare.per_layer is None or self.inputs is None else bare.per_layer.weights(self.inputs)
        return EndWeights(
            table=self.head.packed if self.table is None else self.table,
            head=self.head.packed,
            norm=bare.norm,
            eps=bare.eps,
            embedding_factor=factors.embedding,
            head_factor=factors.head * (factors.logits if self._folds else 1.0),
            screen=self.screen,
            positions=bare.added.positions,
            first_norm=bare.added.norm,
            per_layer=own,
        )

    @property
    def _folds(self) -> bool:
        """Return whether what logits are multiplied by can be what the head is given: exactly."""
        exact = math.frexp(self.bare.factors.logits)[0] == 0.5
        return exact and self.bare.factors.cap is None and self.head.packed.bias is None

    @property
    def finishes(self) -> bool:
        """Return whether anything is done with the logits."""
        factors = self.bare.factors
        return factors.cap is not None or (factors.logits != 1.0 and not self._folds)

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
        if self.bare.per_layer is not None and self.inputs is not None:
            self.bare.per_layer.undo(self.inputs)
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


def read_ends(model: PreTrainedModel, trace: Trace, rows: Tensor, first: int = 0) -> Bare:
    """Return what is around the layers; `rows`: what the table has for the trace's prompt.

    `first`: the position of the prompt's first token. Raises OtherShape if it is anything else than factors,
    what is added by position, a norm before the layers, one after them and a head.
    """
    if type(model.get_output_embeddings()) not in (nn.Linear, NarrowLinear):
        raise OtherShape("its head is no plain linear")
    embedded, hidden = rows.shape[1], trace.layers[0].given.shape[1]
    if embedded != hidden:
        raise OtherShape(f"its embedding has rows of {embedded} numbers, and its layers read {hidden}")
    norm = read_norm(trace.final, hidden)
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    head_factor = factor_of(trace.normed, trace.head_given, "between its last norm and its head")
    capped = is_near(trace.logits, trace.head_result, lambda x: torch.tanh(x / cap) * cap) if cap else False
    embedding, added = _embedding(model, trace, rows, first)
    factors = Factors(
        embedding=embedding,
        head=head_factor,
        logits=1.0 if capped else factor_of(trace.head_result, trace.logits, "after its head"),
        cap=float(cap) if cap and capped else None,
    )
    if added.norm is not None and (added.eps, added.norm.shape) != (norm.eps, norm.weights.shape):
        raise OtherShape("its first norm is another one than its last")
    return Bare(model, norm.weights, norm.eps, factors, norm.centred, added)


def _embedding(model: PreTrainedModel, trace: Trace, rows: Tensor, first: int) -> tuple[float, Added]:
    """Return what the embedding is multiplied with, and what is added to it; raise OtherShape."""
    given = trace.layers[0].given
    try:
        return factor_of(rows, given, "between its embedding and its layers"), NOTHING
    except OtherShape:
        found = find_added(model, trace, rows, first)
        if found is None:
            raise
        return found
