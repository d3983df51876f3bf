"""A mixture's experts whose weights stay in the few bits that their files have them in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from inference.models.numberless import Numberless
from inference.models.weights import expert_weights
from inference.quantised.codes import Codes


class QuantisedExperts(nn.Module):
    """A layer's experts, each expanded as it is used; it stands before the experts' own class."""

    codes: dict[str, list[Codes]]  # each expert's (outputs, inputs), by the parameter that they make
    computed_in: torch.dtype

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Have the codes go where the module goes, and it compute in the dtype that it is given."""
        super()._apply(fn, recurse)
        device = next((each[0].codes.device for each in self.codes.values() if each), None)
        like = fn(torch.empty(0, dtype=self.computed_in, device=device))
        moved = {name: [each.to(like.device) for each in several] for name, several in self.codes.items()}
        self.__dict__["codes"] = moved
        self.__dict__["computed_in"] = like.dtype
        return self

    def __getattr__(self, name: str) -> Any:
        """Return a member that the class itself doesn't have."""
        several = self.__dict__.get("codes", {}).get(name)
        if not several:
            return super().__getattr__(name)
        n, k = several[0].shape
        shape = (len(several), k, n) if self.is_transposed else (len(several), n, k)
        return Numberless.of(shape, self.computed_in, several[0].codes.device)

    def forward(self, given: Tensor, *routing: Tensor, **named: Tensor) -> Tensor:
        """Return (..., hidden) of inputs (..., hidden), in the dtype that is computed in.

        `routing`, or `named`: the experts of each token (tokens, chosen), and how much each of them counts.
        """
        index, weights = (*routing, *named.values())
        return by_turns(self._expert, self.num_experts, given, index, weights)

    def _expert(self, expert: int, x: Tensor) -> Tensor:
        up, down = self.codes
        inner = self._linear(up, expert, x)
        own: Any = self
        inner = own._apply_gate(inner) if self.has_gate else own.act_fn(inner)
        return normed(self, self._linear(down, expert, inner))

    def _linear(self, name: str, expert: int, x: Tensor) -> Tensor:
        bias = self.get_parameter(f"{name}_bias")[expert].to(self.computed_in) if self.has_bias else None
        weight = self.codes[name][expert].expand().to(self.computed_in)
        return linear(x.to(self.computed_in), weight, bias)


def by_turns(
    expert: Callable[[int, Tensor], Tensor], count: int, given: Tensor, index: Tensor, weights: Tensor
) -> Tensor:
    """Return what a mixture gives (..., hidden) of inputs (..., hidden), one expert after the other.

    `expert` computes the rows of one of `count`; index and weights (tokens, chosen). What is no expert's
    number stands for none. A token's sum doesn't depend on what is beside it.
    """
    x = given.reshape(-1, given.shape[-1])
    index, order = index.sort(dim=-1)
    experts = index.reshape(-1)
    counts = torch.bincount(experts, minlength=count).tolist()
    found = x.new_zeros((experts.numel(), x.shape[-1]))
    for number, rows in enumerate(experts.argsort(stable=True).split(counts)):
        if counts[number] and number < count:  # one more stands for none
            found[rows] = expert(number, x[rows // index.shape[-1]]).to(found.dtype)
    found = found.view(*index.shape, -1) * weights.gather(-1, order).to(found.dtype)[..., None]
    result = found[:, 0]
    for chosen in range(1, index.shape[-1]):
        result = result + found[:, chosen]
    return result.view(given.shape)


def normed(experts: Any, found: Tensor) -> Tensor:
    """Return what an expert gives, by the norm that some models have behind each."""
    has_norm = getattr(experts, "has_post_expert_norm", False)  # transformers 5.17 knows none
    result: Tensor = experts.post_expert_norm(found) if has_norm else found
    return result


def keep_expert_codes(
    experts: nn.Module, codes: Mapping[str, Sequence[Codes]], dtype: torch.dtype = torch.float32
) -> None:
    """Have a layer's experts, which lack these weights, compute in `dtype` with such as are in few bits."""
    own = type(experts)
    if not issubclass(own, QuantisedExperts):
        experts.__class__ = type(own.__name__, (QuantisedExperts, own), {"__module__": own.__module__})
    for name in codes:  # what `without_experts` has in their place
        experts.__dict__.pop(name, None)
    experts.__dict__["codes"] = {name: list(several) for name, several in codes.items()}
    experts.__dict__["computed_in"] = dtype


def expert_codes(module: nn.Module) -> dict[str, list[Codes]]:
    """Return a layer's experts' weights in few bits by their names, {} if it has none."""
    return module.codes if isinstance(module, QuantisedExperts) else {}


def is_mixture(module: nn.Module) -> bool:
    """Return whether a module is a layer's experts, whose weights can be packed."""
    return bool(expert_weights(module) or expert_codes(module))


def first_sizes(experts: Any) -> tuple[int, int, int]:
    """Return how many experts there are, and outputs and inputs of their first linears."""
    name = next(iter(expert_weights(experts) or expert_codes(experts)))
    count, n, k = getattr(experts, name).shape
    return (count, k, n) if experts.is_transposed else (count, n, k)


def without_experts(model_class: type[Any], places: Sequence[tuple[str, str]]) -> type[Any]:
    """Return a subclass without these parameters, named by their modules and in these: none is loaded."""

    class Without(model_class):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            for path, name in places:
                experts = self.get_submodule(path)
                del experts._parameters[name]
                # The loader would fill what isn't there; and there is code of a layer that fills its experts'
                experts._is_hf_initialized = True
                setattr(experts, name, torch.empty(0))

    Without.__name__, Without.__module__ = model_class.__name__, model_class.__module__
    return Without
