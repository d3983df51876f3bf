"""Which of a model's mixtures have experts in few bits, as its files have them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.errors import ModelUnavailable
from inference.models.file_names import FileNames
from inference.models.quantised_experts import keep_expert_codes
from inference.models.weights import expert_weights
from inference.quantised.codes import Codes, join
from inference.quantised.expansion import Expansion
from inference.quantised.stored import Kept, Stored

Given = TypeVar("Given")
Result = TypeVar("Result")
Names = tuple[str, ...]  # in the files: of what one expert's outputs are put together of


@dataclass(frozen=True, slots=True)
class KeptExperts:
    """Experts that compute with weights in few bits, as the files have them or rounded at the start."""

    # Their modules, the parameters that these have otherwise, and each expert's names; or one for all experts
    places: Mapping[tuple[str, str], tuple[Names, ...] | str] = field(default_factory=dict)
    rounded: tuple[str, ...] = ()  # modules whose experts are rounded as they are loaded

    def __bool__(self) -> bool:
        return bool(self.places or self.rounded)

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


def round_experts(
    model: nn.Module, kept: KeptExperts, rounds: Callable[[Tensor], Codes], dtype: torch.dtype
) -> None:
    """Have a loaded model's experts compute with what each one's weight (outputs, inputs) is rounded to."""
    for path in kept.rounded:
        experts = model.get_submodule(path)
        codes: dict[str, list[Codes]] = {}
        for name, weights in expert_weights(experts).items():
            turned = weights.detach().transpose(1, 2) if experts.is_transposed else weights.detach()
            codes[name] = on_threads(rounds, turned)
            del experts._parameters[name]
        keep_expert_codes(experts, codes, dtype)


def on_threads(work: Callable[[Given], Result], several: Iterable[Given]) -> list[Result]:
    """Return what `work` makes of each weight, on as many threads as torch has, in inference mode.

    Each has one thread of torch's: a weight is too small for several, and all at once they'd be more than
    there are cores.
    """
    threads = torch.get_num_threads()

    def alone(each: Given) -> Result:
        with torch.inference_mode():  # which is a thread's own
            return work(each)

    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(alone, several))
    finally:
        torch.set_num_threads(threads)  # what threads that are started later begin with


def rounded_shapes(model: nn.Module) -> dict[str, list[tuple[int, int]]]:
    """Return the shapes (outputs, inputs) of all experts that can be rounded, by their modules' paths."""
    found: dict[str, list[tuple[int, int]]] = {}
    for path, module in model.named_modules():
        for weights in expert_weights(module).values():
            count, n, k = weights.shape
            found.setdefault(path, []).extend([(k, n) if module.is_transposed else (n, k)] * count)
    return found


def _read(experts: tuple[Names, ...], tensors: Mapping[str, Kept]) -> list[Codes]:
    def whole(names: Names) -> Codes:
        codes = [tensors[name].codes() for name in names]
        found = join(codes) or join([each.packable() for each in codes])  # groups may be of other sizes
        if found is None:
            raise ModelUnavailable(
                f"{_listed(names)} of the files are parts of one expert, and in codes of different kinds "
                f"or groups, which can't be one weight: start with --compress-weights false, which has them "
                f"expanded, or give a model whose experts are quantised alike"
            )
        return found

    return on_threads(whole, experts)


def _listed(names: Names) -> str:
    return " and ".join(f"`{name}`" for name in names)


def _whole(
    model: PreTrainedModel, stored: Stored, bits: Collection[int]
) -> dict[tuple[str, str], tuple[Names, ...] | str]:
    """Return the parameters that the files have as one weight."""
    names = FileNames(model)
    found: dict[tuple[str, str], tuple[Names, ...] | str] = {}
    own = {f"{path}.{name}": (path, name, shape) for path, name, shape in _parameters(model, turned=True)}
    for name, each in stored.weights.items():
        renamed, source = names.own(name)
        kept = each.experts is not None and each.codes_bytes and each.bits in bits
        if kept and source is None and renamed in own:
            path, parameter, shape = own[renamed]
            if each.shape == tuple(shape):
                found[path, parameter] = name
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
        if not places or set(places) != set(known):
            continue
        weights = [stored.weights[known[place]] for place in places]
        alike = len({_form(each) for each in weights}) == 1
        if alike and all(_fit(weights[at : at + count], shape) for at in range(0, len(weights), count)):
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
