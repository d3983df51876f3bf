"""Which of a model's mixtures have experts in few bits, as its files have them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from transformers import PreTrainedModel

from inference.models.file_names import FileNames
from inference.models.quantised_experts import keep_expert_codes
from inference.models.weights import expert_weights
from inference.quantised.codes import Codes, join
from inference.quantised.expansion import Expansion
from inference.quantised.stored import Kept, Stored

Names = tuple[str, ...]  # in the files: of what one expert's outputs are put together of


@dataclass(frozen=True, slots=True)
class KeptExperts:
    """Experts that compute with weights in the few bits that the files have."""

    # Their modules, the parameters that these have otherwise, and each expert's names; or one for all experts
    places: Mapping[tuple[str, str], tuple[Names, ...] | str] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """Return the names of these weights in the files."""
        found: set[str] = set()
        for each in self.places.values():
            found |= {each} if isinstance(each, str) else {name for names in each for name in names}
        return frozenset(found)


def stored_experts(model: PreTrainedModel, stored: Stored, bits: Collection[int]) -> KeptExperts:
    """Return the experts whose weights can stay in the files' bits, if they have so many.

    All of a layer's do, or none: its weights are of one form.
    """
    found = _whole(model, stored, bits) | _pieces(model, stored, bits)
    modules = {path: module for path, module in model.named_modules() if expert_weights(module)}
    return KeptExperts(
        {
            (path, name): found[path, name]
            for path, module in modules.items()
            for name in expert_weights(module)
            if all((path, other) in found for other in expert_weights(module))
        }
    )


def keep_experts(
    model: nn.Module, kept: KeptExperts, tensors: Mapping[str, Kept], dtype: torch.dtype
) -> None:
    """Have a loaded model's experts compute with few bits, inputs in `dtype`."""
    codes: dict[str, dict[str, list[Codes]]] = {}
    for (path, name), experts in kept.places.items():
        read = tensors[experts].experts() if isinstance(experts, str) else _read(experts, tensors)
        codes.setdefault(path, {})[name] = read
    for path, of_module in codes.items():
        keep_expert_codes(model.get_submodule(path), of_module, dtype)


def _read(experts: tuple[Names, ...], tensors: Mapping[str, Kept]) -> list[Codes]:
    found = []
    for names in experts:
        whole = join([tensors[name].codes() for name in names])
        assert whole is not None, "their forms are alike"
        found.append(whole)
    return found


def _whole(
    model: PreTrainedModel, stored: Stored, bits: Collection[int]
) -> dict[tuple[str, str], tuple[Names, ...] | str]:
    """Return the parameters that the files have as one weight."""
    names = FileNames(model)
    found: dict[tuple[str, str], tuple[Names, ...] | str] = {}
    own = {f"{path}.{name}": (path, name) for path, name, _ in _parameters(model, turned=True)}
    for name, each in stored.weights.items():
        renamed, source = names.own(name)
        kept = each.experts is not None and each.codes_bytes and each.bits in bits
        if kept and source is None and renamed in own:
            found[own[renamed]] = name
    return found


def _pieces(
    model: PreTrainedModel, stored: Stored, bits: Collection[int]
) -> dict[tuple[str, str], tuple[Names, ...] | str]:
    """Return the parameters that the files have in pieces, where all of these can stay in few bits, alike."""
    names = FileNames(model)
    pieces: dict[str, dict[tuple[int, int], str]] = {}
    parts: dict[str, int] = {}
    for name, each in stored.weights.items():
        piece = names.piece(name) if each.codes is not None and each.bits in bits else None
        if piece is not None:
            pieces.setdefault(piece.name, {})[piece.expert, piece.part] = name
            parts[piece.name] = piece.parts
    found: dict[tuple[str, str], tuple[Names, ...] | str] = {}
    for path, name, shape in _parameters(model, turned=False):
        known, count = pieces.get(f"{path}.{name}", {}), parts.get(f"{path}.{name}", 0)
        places = [(expert, part) for expert in range(shape[0]) for part in range(count)]
        if not places or any(place not in known for place in places):
            continue
        weights = [stored.weights[known[place]] for place in places]
        if len({_form(each) for each in weights}) == 1 and _fit(weights[:count], shape):
            several = [tuple(known[expert, part] for part in range(count)) for expert in range(shape[0])]
            found[path, name] = tuple(several)
    return found


def _parameters(model: PreTrainedModel, *, turned: bool) -> list[tuple[str, str, torch.Size]]:
    """Return modules' paths, names and shapes of all mixtures' parameters that are turned, or aren't."""
    return [
        (path, name, weights.shape)
        for path, module in model.named_modules()
        for name, weights in expert_weights(module).items()
        if module.is_transposed is turned
    ]


def _form(each: Expansion) -> tuple[object, ...]:
    return each.kind, each.bits, each.shape[1], each.codes_bytes / each.count


def _fit(parts: list[Expansion], shape: torch.Size) -> bool:
    """Return whether an expert's parts are its outputs (n, k), one below the other."""
    return sum(each.shape[0] for each in parts) == shape[1] and parts[0].shape[1] == shape[2]
