"""A model brought to its level, and loaded once more where that can't compute in few bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from inference.levels.served import Served
from inference.loading.source import Source
from inference.machine import release_memory
from inference.planning.plan import Plan, make_plan
from inference.shards.group import Group
from inference.vision.model import Vision


class Brought(NamedTuple):
    """A model at its level."""

    source: Source
    plan: Plan
    served: Served
    vocabulary: int
    vision: Vision | None


def bring_up(source: Source, plan: Plan, progress: Callable[[str], None], group: Group | None) -> Brought:
    """Load a model, or its share in a group, as planned, or as planned anew; raise ModelUnavailable."""
    served, vocabulary, vision = source.bring_up(plan.max_total_tokens, progress, group)
    expanded = source.expanded(served)
    if expanded is None:
        return Brought(source, plan, served, vocabulary, vision)
    bits, name = source.kept.bits, served.name
    progress(f"Weights can't be in {bits} bits at level {name}: they are loaded again, and expanded")
    del served, vision
    release_memory()
    again = make_plan(source.config, expanded.demand(), expanded.machine(plan.machine.threads))
    progress(str(again))
    return Brought(expanded, again, *expanded.bring_up(again.max_total_tokens, progress, group))
