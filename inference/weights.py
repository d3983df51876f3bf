"""Weights in the form they are stored in: what 16 bits hold stays in 16 bits and is widened as it is used.

Linears and embeddings are nearly all of a model. Every other parameter becomes float32 at once, so
that the model's own code computes in float32 throughout, as if all of it had been loaded so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from inference.kernels.native import WeightKind, narrowest

NARROW = (torch.bfloat16, torch.float16)
_SMALL = 100_000  # numbers of a parameter that isn't a matrix, for the most part
_WIDENED = 4 * 1024 * 1024  # numbers that are widened at once


class NarrowLinear(nn.Linear):
    """A linear whose 16-bit weight is widened as it is used, some rows at a time: exact, and small."""

    def forward(self, given: Tensor) -> Tensor:
        """Return (..., out_features) in float32."""
        rows = max(_WIDENED // self.in_features, 1)
        parts = [linear(given, part.float()) for part in self.weight.split(rows)]
        result = torch.cat(parts, -1) if len(parts) > 1 else parts[0]
        return result if self.bias is None else result + self.bias.float()


class NarrowEmbedding(nn.Module):
    """An embedding whose 16-bit rows are widened after they are looked up.

    What its class does with them, which may be more than a look-up, it does on the widened rows.
    """

    def __init__(self, inner: nn.Embedding) -> None:
        super().__init__()
        self.weight = inner.weight  # (vocabulary, hidden), in 16 bits
        inner.weight = None  # only here, so that it can be freed
        self._inner = inner
        self._plain = type(inner) is nn.Embedding

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of `ids` in float32, of shape (*ids.shape, hidden)."""
        rows = embedding(ids, self.weight).float()
        if self._plain:
            return rows
        self._inner.weight = nn.Parameter(rows.flatten(0, -2), requires_grad=False)
        result: Tensor = self._inner(torch.arange(ids.numel(), device=ids.device).view(ids.shape))
        self._inner.weight = None
        return result


def stays_narrow(module: nn.Module) -> bool:
    """Return whether a module's weight is kept in 16 bits where it is stored so; all others are widened."""
    return type(module) is nn.Linear or isinstance(module, nn.Embedding)


def loading_class(
    model_class: type[PreTrainedModel], stored: Mapping[str, torch.dtype], dtype: torch.dtype | None
) -> type[PreTrainedModel]:
    """Return a subclass that loads linears and embeddings as they are stored, the rest in float32.

    `stored` has the files' dtypes by the files' names. With a 16-bit `dtype` they are all rounded to that.
    The model is made as a float32 model: what its code computes while it is made isn't rounded.
    """

    def plan(model: PreTrainedModel, loaded: torch.dtype) -> dict[str, torch.dtype]:
        # Called between the model's making, without weights, and its loading: the loader keeps these dtypes.
        for module, kind in kept_kinds(model, stored).items():
            if (dtype or kind) in NARROW:
                module.weight = nn.Parameter(module.weight.to(dtype or kind), requires_grad=False)
        return {}

    members: dict[str, Any] = {"_get_dtype_plan": plan, "__module__": model_class.__module__}
    return type(model_class.__name__, (model_class,), members)


def kept_kinds(model: PreTrainedModel, stored: Mapping[str, torch.dtype]) -> dict[Any, torch.dtype]:
    """Return what the weight of each linear and embedding is stored in, by the files' dtypes and names.

    One that the files don't have, as it is tied to another, is as that one, or as all others are.
    """
    by_name = _by_own_names(model, stored)
    modules = {module: f"{name}.weight" for name, module in model.named_modules() if stays_narrow(module)}
    found = {id(module.weight): by_name[name] for module, name in modules.items() if name in by_name}
    kinds = set(found.values())
    common = kinds.pop() if len(kinds) == 1 else torch.float32
    return {
        module: by_name.get(name) or found.get(id(module.weight), common) for module, name in modules.items()
    }


def _by_own_names(model: PreTrainedModel, stored: Mapping[str, torch.dtype]) -> dict[str, torch.dtype]:
    """Return the files' dtypes by the names of the model's parameters, which transformers gives them.

    A model that sees has other names in its files. What is made of several is in 16 bits if all are.
    """
    transforms = get_model_conversion_mapping(model)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    parts = {pattern: each.target_patterns for each in converters for pattern in each.source_patterns}
    own, prefix = model.state_dict(), model.base_model_prefix
    found: dict[str, torch.dtype] = {}
    for name, kind in stored.items():
        renamed, source = rename_source_key(name, renamings, converters, prefix, own)
        if renamed not in own and name in own:
            renamed, source = name, None
        first, *others = parts.get(source, [renamed])
        for each in (renamed, *(renamed.replace(first, other) for other in others)):
            found[each] = kind if found.get(each, kind) == kind else torch.float32
    return found


def widen(model: PreTrainedModel) -> None:
    """Have 16-bit linears and embeddings widened as they are used, and all other parameters be float32."""
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if type(module) is nn.Linear and module.weight.dtype in NARROW:
            module.__class__ = NarrowLinear
        elif isinstance(module, nn.Embedding) and module.weight.dtype in NARROW:
            parent, _, own = name.rpartition(".")
            setattr(modules[parent], own, NarrowEmbedding(module))
    for module in model.modules():
        _widen_parameters(module)


def narrow_embeddings(model: PreTrainedModel) -> None:
    """Keep float32 embeddings in 16 bits where those hold every number exactly."""
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if not isinstance(module, nn.Embedding) or module.weight is None or module.weight.dtype in NARROW:
            continue
        kind = narrowest(module.weight)
        if kind is WeightKind.FLOAT32:
            continue
        head = model.get_output_embeddings()
        tied = head is not None and head.weight is module.weight
        narrow = module.weight.detach().to(torch.bfloat16 if kind is WeightKind.BFLOAT16 else torch.float16)
        module.weight = nn.Parameter(narrow, requires_grad=False)
        if tied and type(head) is nn.Linear:  # still one
            head.weight = module.weight
            head.__class__ = NarrowLinear
        parent, _, own = name.rpartition(".")
        setattr(modules[parent], own, NarrowEmbedding(module))


def _widen_parameters(module: nn.Module) -> None:
    is_matrix = isinstance(module, nn.Linear | nn.Embedding | NarrowEmbedding)
    for name, parameter in module.named_parameters(recurse=False):
        if is_matrix and name == "weight":
            continue
        if parameter.is_floating_point() and parameter.numel() < _SMALL:
            # A copy: a loaded parameter is a view of its file, which stays in memory as a whole for it
            setattr(module, name, nn.Parameter(parameter.float().clone(), requires_grad=False))
        elif parameter.dtype in NARROW:
            setattr(module, name, nn.Parameter(parameter.float(), requires_grad=False))
