"""Which of a model's weights are in few bits, as its files have them or rounded at the start."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from inference.loading.keeping_experts import (
    KeptExperts,
    keep_experts,
    on_threads,
    round_experts,
    rounded_shapes,
    stored_experts,
)
from inference.models.file_names import FileNames
from inference.models.joined import linear_size
from inference.models.layers import JOINED
from inference.models.linears import weight_and_bias
from inference.models.quantised import keep_codes, make_quantised
from inference.models.quantised_experts import is_mixture
from inference.models.weights import make_plain
from inference.quantised import bits8
from inference.quantised.asked import INT8
from inference.quantised.bits4 import packed_bytes
from inference.quantised.codes import Codes
from inference.quantised.rounding4 import BLOCK, round_rows
from inference.quantised.stored import Kept, Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptWeights:
    """Linears, and mixtures' experts, that compute with weights in the few bits that they are in."""

    places: Mapping[str, str] = field(default_factory=dict)  # linears' in the model, by names in the files
    experts: KeptExperts = field(default_factory=KeptExperts)
    numbers: int = 0  # of all these weights
    nbytes: int = 0  # that they take at most
    bits: str = ""  # of a number, for a person
    rounding: str | None = None  # by which they are rounded as they are loaded; None: files have them so

    def __bool__(self) -> bool:
        return bool(self.places or self.experts)

    @property
    def names(self) -> frozenset[str]:
        """Return the names of these weights in the files; none if they are rounded."""
        return frozenset() if self.rounding else self.experts.names.union(self.places)


def stored_linears(
    model: PreTrainedModel, stored: Stored, bits: Collection[int], *, experts: bool
) -> KeptWeights:
    """Return the linears and experts whose weights can stay in the files' bits, if they have so many.

    Those are plain linears' of text that the loader takes one by one, and experts'. A head isn't among them,
    which may be an embedding, too. `experts`: whether experts can.
    """
    places = {f"{path}.weight": path for path in _linears(model, (nn.Linear,))}
    names, found = FileNames(model), {}
    for name, each in stored.weights.items():
        renamed, source = names.own(name)
        if each.codes is not None and each.bits in bits and source is None and renamed in places:
            found[name] = places[renamed]
    mixed = _mixed(model, found, stored)
    found = {name: path for name, path in found.items() if path not in mixed}
    of_mixtures = stored_experts(model, stored, bits) if experts else KeptExperts()
    weights = [stored.weights[name] for name in (*found, *of_mixtures.names)]
    numbers, nbytes = sum(each.count for each in weights), sum(each.codes_bytes for each in weights)
    said = " and ".join(map(str, sorted({each.bits for each in weights})))
    return KeptWeights(places=found, experts=of_mixtures, numbers=numbers, nbytes=nbytes, bits=said)


def rounded_linears(model: PreTrainedModel, rounding: str, *, experts: bool) -> KeptWeights:
    """Return what is rounded so: linears of text, but for head, routers and gates, and experts if they can.

    Rounded, a router would choose others; both are small.
    """
    others = {1, *(module.num_experts for module in model.modules() if is_mixture(module))}
    linears = _linears(model, (nn.Linear, Conv1D)).items()
    sizes = {path: linear_size(module) for path, module in linears}
    found = {path: size for path, size in sizes.items() if size[0] not in others}
    shapes = [*found.values()]
    of_mixtures = rounded_shapes(model) if experts else {}
    shapes += [each for several in of_mixtures.values() for each in several]
    return KeptWeights(
        places={path: path for path in found},
        experts=KeptExperts(rounded=tuple(of_mixtures)),
        numbers=sum(n * k for n, k in shapes),
        nbytes=sum(_rounded_bytes(n, k, rounding) for n, k in shapes),
        bits="8" if rounding == INT8 else "4",
        rounding=rounding,
    )


def keep(model: PreTrainedModel, kept: KeptWeights, tensors: Mapping[str, Kept], dtype: torch.dtype) -> None:
    """Have a loaded model's linears and experts compute with few bits, inputs in `dtype`.

    `tensors` are what files hold of these by its names.
    """

    def keep_one(name: str) -> None:
        module = model.get_submodule(kept.places[name])
        if kept.rounding is None:
            keep_codes(module, tensors[name].codes(), dtype)
            return
        weight, bias = weight_and_bias(module)
        codes = _rounded(weight.contiguous(), kept.rounding)
        if type(module) is nn.Linear:
            keep_codes(module, codes, dtype)
            return
        parent, _, own = kept.places[name].rpartition(".")
        setattr(model.get_submodule(parent), own, make_quantised(codes, bias, dtype))

    on_threads(keep_one, kept.places)
    with torch.inference_mode():
        keep_experts(model, kept.experts, tensors, dtype)
        if kept.rounding is not None:
            round_experts(model, kept.experts, partial(_rounded, rounding=kept.rounding), dtype)


def _rounded(weight: Tensor, rounding: str) -> Codes:
    return bits8.round_rows(weight) if rounding == INT8 else round_rows(weight, rounding)


def _rounded_bytes(outputs: int, inputs: int, rounding: str) -> int:
    if rounding == INT8:
        return bits8.bytes_in_8_bits(outputs, inputs, inputs)
    return packed_bytes(outputs, inputs, BLOCK, zeros=False)


def _linears(model: PreTrainedModel, kinds: tuple[type[nn.Module], ...]) -> dict[str, nn.Module]:
    """Return the linears of some kinds that text comes through but for the head, by their paths."""
    make_plain(model)
    whole = model.config.get_text_config() is model.config
    of_text = set(model.modules() if whole else model.get_decoder().modules())
    of_text.discard(model.get_output_embeddings())
    return {path: each for path, each in model.named_modules() if type(each) in kinds and each in of_text}


def _mixed(model: PreTrainedModel, found: Mapping[str, str], stored: Stored) -> set[str]:
    """Return the paths of linears beside which are others, to be computed as one, that aren't kept alike."""
    weights = {path: stored.weights[name] for name, path in found.items()}
    forms = {path: (each.kind, each.codes_bytes / each.count) for path, each in weights.items()}
    mixed: set[str] = set()
    for path in forms:
        parent, _, own = path.rpartition(".")
        names = next((each for each in JOINED if own in each), (own,))
        beside = [f"{parent}.{name}" for name in names if hasattr(model.get_submodule(parent), name)]
        if len({forms.get(each) for each in beside}) > 1:
            mixed.add(path)
    return mixed
