"""Modules of a model's own code that others stand for, which keep them to be put back."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import nn

Places = list[tuple[nn.Module, str]]  # a parent, and its name for what was swapped


class Swapped(nn.Module):
    """Stands for a module."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own

    def restore(self) -> nn.Module:
        """Return the module, with all that is its own."""
        return self.own


def swap_modules(
    model: nn.Module, make: Callable[[nn.Module], Swapped | None], but: Collection[nn.Module] = ()
) -> Places:
    """Replace each module that something is made for, but for those directly in some others."""
    places: Places = []
    for parent in (each for each in list(model.modules()) if each not in but):
        for name, module in list(parent._modules.items()):
            swapped = None if module is None else make(module)
            if swapped is not None:
                setattr(parent, name, swapped)
                places.append((parent, name))
    return places


def put_modules_back(places: Places) -> None:
    """Undo `swap_modules`."""
    for parent, name in reversed(places):
        swapped = parent.get_submodule(name)
        assert isinstance(swapped, Swapped)
        setattr(parent, name, swapped.restore())
