"""Weights in the form they are stored in: what 16 bits hold stays in 16 bits and is widened as it is used.

Linears, embeddings and mixtures' experts are nearly all of a model. Every other parameter becomes float32
at once, so that the model's own code computes in float32 throughout, as if all of it had been loaded so.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear
from transformers import PreTrainedModel

from inference.kernels.native import WeightKind, narrowest
from inference.models.file_names import FileNames
from inference.models.numberless import SIZES

NARROW = (torch.bfloat16, torch.float16)
_IN_OTHER_WORDS = {"FalconLinear"}
_SMALL = 100_000  # numbers of a parameter that isn't a matrix, for the most part
_WIDENED = 4 * 1024 * 1024  # numbers that are widened at once
_OF_THE_MODEL = ContextVar("_OF_THE_MODEL", default=False)  # who asks for a weight
_EXPERTS_SAY = ("has_gate", "has_bias", "is_transposed", "num_experts")
# What is asked of a tensor whatever its numbers are
_OF_SHAPE = (*SIZES, Tensor.device.__get__, Tensor.__len__, Tensor.data_ptr)
_ONE_AT_A_TIME = threading.Lock()


class NarrowLinear(nn.Linear):
    """A linear whose 16-bit weight is widened as it is used, some rows at a time: exact, and small.

    Some models' code asks for a weight itself, to multiply with it or for its dtype. To that it is `Widened`.
    """

    asked = False  # for its weight, by the model's code

    def __getattr__(self, name: str) -> Any:
        """Return a member that the class itself doesn't have."""
        found = super().__getattr__(name)
        if name != "weight":
            return found
        return Widened.of(found) if self.is_asked() and found.dtype in NARROW else found

    def is_asked(self) -> bool:
        """Return whether the model's code asks for the weight, or has done so."""
        self.__dict__["asked"] = self.asked or _OF_THE_MODEL.get()
        return self.asked

    def forward(self, given: Tensor) -> Tensor:
        """Return (..., out_features) in float32."""
        rows = max(_WIDENED // self.in_features, 1)
        given = given.float()  # as code may have asked before it was noted
        parts = [linear(given, part.float()) for part in self.get_weight().split(rows)]
        result = torch.cat(parts, -1) if len(parts) > 1 else parts[0]
        return result if self.bias is None else result + self.bias.float()

    def get_weight(self) -> Tensor:
        """Return the weight as it is."""
        weight = self._parameters["weight"]
        assert weight is not None, "it isn't packed"
        return weight


@contextmanager
def asking_for_weights() -> Iterator[None]:
    """Have it noted whose weights are asked for: what runs is the model's own code, for the first time."""
    token = _OF_THE_MODEL.set(True)
    try:
        yield
    finally:
        _OF_THE_MODEL.reset(token)


class NarrowEmbedding(nn.Module):
    """An embedding whose 16-bit rows are widened after they are looked up.

    What its class does with them, which may be more than a look-up, it does on the widened rows.
    """

    def __init__(self, inner: nn.Embedding) -> None:
        super().__init__()
        self.weight = inner.weight  # (vocabulary, hidden), in 16 bits
        inner.weight = None  # only here, so that it can be freed
        inner.padding_idx = None  # a place in the vocabulary, which is none in the rows that are looked up
        self._inner = inner
        self._plain = type(inner) is nn.Embedding

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of `ids` in float32, of shape (*ids.shape, hidden)."""
        rows = embedding(ids, self.weight).float()
        if self._plain:
            return rows
        with _ONE_AT_A_TIME:  # who looks at images asks for rows while others are computed
            self._inner.weight = nn.Parameter(rows.flatten(0, -2), requires_grad=False)
            result: Tensor = self._inner(torch.arange(ids.numel(), device=ids.device).view(ids.shape))
            self._inner.weight = None
        return result


class NarrowExperts(nn.Module):
    """A layer's experts whose 16-bit weights are float32 to the model's code: exact, and small.

    It stands before the experts' own class, which reads its weights as `Widened`.
    """

    def __getattr__(self, name: str) -> Any:
        """Return a member that the class itself doesn't have."""
        found = super().__getattr__(name)
        narrow = isinstance(found, nn.Parameter) and found.dtype in NARROW
        return Widened.of(found) if narrow else found


class Widened(Tensor):
    """A tensor of 16 bits that says it is of float32, as experts (experts, n, k), each widened as it is read.

    To pick some of them, or to multiply each with rows of its own, takes no more memory than these, or one.
    What nothing else is known of widens them all.
    """

    @staticmethod
    def of(weights: Tensor) -> Widened:
        """Return weights of 16 bits as the model's code is to see them."""
        return weights.detach().as_subclass(Widened)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func == Tensor.dtype.__get__:
                return torch.float32
            if func in _OF_SHAPE:
                return func(*args, **kwargs)
            if func is Tensor.transpose:
                return func(*args, **kwargs).as_subclass(cls)
            if func is Tensor.__getitem__ and type(args[0]) is cls:
                return func(*args).float()
            said = [name for name, value in kwargs.items() if value is not None]
            if func is torch._grouped_mm and said == ["offs"] and type(args[0]) is not cls:
                given, weights = args
                return _multiply_groups(given, weights, kwargs["offs"])
            return func(*_all_widened(args), **_all_widened(kwargs))


def loading_class(
    model_class: type[PreTrainedModel], stored: Mapping[str, torch.dtype], dtype: torch.dtype | None
) -> type[PreTrainedModel]:
    """Return a subclass that loads linears, embeddings and experts as they are stored, the rest in float32.

    `stored` has the files' dtypes by the files' names. With a 16-bit `dtype` linears and embeddings are all
    rounded to that. The model is made as a float32 model: what its code computes while it is made isn't
    rounded.
    """

    def plan(model: PreTrainedModel, loaded: torch.dtype) -> dict[str, torch.dtype]:
        # Called between the model's making, without weights, and its loading: the loader keeps these dtypes.
        for (module, name), stored_as in kept_kinds(model, stored).items():
            kind = stored_as if expert_weights(module) else dtype or stored_as
            if kind in NARROW:
                weight = getattr(module, name)
                setattr(module, name, nn.Parameter(weight.to(kind), requires_grad=False))
        return {}

    members: dict[str, Any] = {"_get_dtype_plan": plan, "__module__": model_class.__module__}
    return type(model_class.__name__, (model_class,), members)


def kept_kinds(
    model: PreTrainedModel, stored: Mapping[str, torch.dtype]
) -> dict[tuple[Any, str], torch.dtype]:
    """Return what weights of linears, embeddings and experts are stored in, by the files' dtypes and names.

    They go by their module and their name in it. One that the files don't have, as it is tied to another,
    is as that one, or as all linears and embeddings are.
    """
    by_name = _by_own_names(model, stored)
    weights = {
        (module, own): f"{name}.{own}" for name, module in model.named_modules() for own in _kept(module)
    }
    found = {id(getattr(*each)): by_name[name] for each, name in weights.items() if name in by_name}
    kinds = {by_name[name] for (_, own), name in weights.items() if own == "weight" and name in by_name}
    common = {"weight": kinds.pop()} if len(kinds) == 1 else {}
    return {
        each: by_name.get(name) or found.get(id(getattr(*each)), common.get(each[1], torch.float32))
        for each, name in weights.items()
    }


def _by_own_names(model: PreTrainedModel, stored: Mapping[str, torch.dtype]) -> dict[str, torch.dtype]:
    """Return the files' dtypes by the names of the model's parameters, which transformers gives them.

    A model that sees has other names in its files. What is made of several is in 16 bits if all are.
    """
    names = FileNames(model)
    found: dict[str, torch.dtype] = {}
    for name, kind in stored.items():
        renamed, source = names.own(name)
        first, *others = [renamed] if source is None else names.parts[source]
        for each in (renamed, *(renamed.replace(first, other) for other in others)):
            found[each] = kind if found.get(each, kind) == kind else torch.float32
    return found


def make_plain(model: nn.Module) -> None:
    """Have linears that say in other words what nn.Linear computes be nn.Linear, as that is looked for."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and type(module).__name__ in _IN_OTHER_WORDS:
            module.__class__ = nn.Linear


def widen(model: PreTrainedModel) -> None:
    """Have what is kept in 16 bits widened as it is used, and all other parameters be float32."""
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if type(module) is nn.Linear and module.weight.dtype in NARROW:
            module.__class__ = NarrowLinear
        elif _looks_up(module) and module.weight.dtype in NARROW:
            parent, _, own = name.rpartition(".")
            setattr(modules[parent], own, NarrowEmbedding(module))
        elif any(each.dtype in NARROW for each in expert_weights(module).values()):
            keep_narrow(module)
    for module in model.modules():
        _widen_parameters(module)


def narrow_embeddings(model: PreTrainedModel) -> None:
    """Keep float32 embeddings in 16 bits where those hold every number exactly."""
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if not _looks_up(module) or module.weight is None or module.weight.dtype in NARROW:
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


def widen_experts(model: nn.Module) -> None:
    """Have experts be float32 from now on, which takes less time than to widen them as they are used."""
    for module in model.modules():
        for name, weights in expert_weights(module).items():
            setattr(module, name, nn.Parameter(weights.float(), requires_grad=False))


def expert_weights(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return a layer's experts' weights (experts, n, k) by their names, {} if it has none that are packed."""
    if not all(hasattr(module, name) for name in _EXPERTS_SAY):
        return {}
    names = ("gate_up_proj" if module.has_gate else "up_proj", "down_proj")
    found = {name: each for name in names if (each := module._parameters.get(name)) is not None}
    fitting = [each.dim() == 3 and len(each) == module.num_experts for each in found.values()]
    return found if len(fitting) == len(names) and all(fitting) else {}


def keep_narrow(experts: nn.Module) -> None:
    """Have a layer's experts widened as they are used, those of its weights that are of 16 bits."""
    own = type(experts)
    if not issubclass(own, NarrowExperts):
        experts.__class__ = type(own.__name__, (NarrowExperts, own), {"__module__": own.__module__})


def _kept(module: nn.Module) -> tuple[str, ...]:
    """Return the weights that are kept in 16 bits where they are stored so; all others are widened."""
    if type(module) is nn.Linear or _looks_up(module):
        return ("weight",)
    return tuple(expert_weights(module))


def _looks_up(module: nn.Module) -> TypeGuard[nn.Embedding]:
    """Return whether an embedding is asked for rows by ids, and gives what is in them.

    Others, of positions, find these themselves, or have rows of their own for some ids (T5Gemma 2).
    """
    if not isinstance(module, nn.Embedding) or len(module._parameters) > 1:
        return False
    return type(module) is nn.Embedding or len(inspect.signature(type(module).forward).parameters) == 2


def _widen_parameters(module: nn.Module) -> None:
    is_matrix = isinstance(module, nn.Linear | NarrowEmbedding) or _looks_up(module)
    experts = expert_weights(module)
    for name, parameter in module.named_parameters(recurse=False):
        if (is_matrix and name == "weight") or (name in experts and parameter.dtype in NARROW):
            continue
        if parameter.is_floating_point() and parameter.numel() < _SMALL:
            # A copy: a loaded parameter is a view of its file, which stays in memory as a whole for it
            setattr(module, name, nn.Parameter(parameter.float().clone(), requires_grad=False))
        elif parameter.dtype in NARROW:
            setattr(module, name, nn.Parameter(parameter.float(), requires_grad=False))


def _multiply_groups(given: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Return rows (m, k), each times the expert (k, n) whose it is; `ends` says where each expert's end.

    With weights of float32 torch does the same, to the last bit.
    """
    found = given.new_zeros((len(given), weights.shape[-1]))
    wide = torch.empty_like(weights[0], dtype=torch.float32)  # lies as they do, turned or not
    start = 0
    for expert, end in enumerate(ends.tolist()):
        if start < end:
            torch.mm(given[start:end], wide.copy_(weights[expert]), out=found[start:end])
        start = end
    return found


def _all_widened(value: Any) -> Any:
    """Return what a function is called with, its experts in float32."""
    if isinstance(value, Widened):
        return value.float()
    if isinstance(value, dict):
        return {name: _all_widened(each) for name, each in value.items()}
    return type(value)(map(_all_widened, value)) if type(value) in (list, tuple) else value
