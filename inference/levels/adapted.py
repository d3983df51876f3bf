"""Which adapters the level that was found can use."""

from __future__ import annotations

import logging

from torch import nn

from inference.files.adapters import MERGE, refused
from inference.levels.options import Options
from inference.levels.proof import PROOF_BLOCKS, Proof
from inference.levels.proof_steps import packed_steps, sequential_steps
from inference.levels.served import Served
from inference.models.lora import USELESS, Adapters

LOG = logging.getLogger(__name__)


def leave_out(model: nn.Module, adapters: Adapters | None, proof: Proof) -> None:
    """Have adapters add nothing to linears that text doesn't come through: an image's rows are no tokens.

    Raises ModelUnavailable for one that adds to no others.
    """
    for name, ranks in () if adapters is None else zip(adapters.names, adapters.low_ranks, strict=True):
        idle = [path for path in ranks if model.get_submodule(path) in proof.idle]
        if idle and len(idle) == len(ranks):
            raise refused(name, USELESS)
        if idle:
            LOG.warning("The adapter %s adds to %d linears that text doesn't come through", name, len(idle))
        for path in idle:
            del ranks[path]


def check_adapters(served: Served, options: Options, proof: Proof) -> None:
    """Raise ModelUnavailable if an adapter can't be used at the level that was found."""
    if options.adapters is None:
        return
    runner = served.make_runner(PROOF_BLOCKS)
    for place, name in enumerate(options.adapters.names):
        steps = packed_steps if served.level.chunked else sequential_steps
        complaint = proof.try_adapter(runner, place, steps)
        if complaint:
            raise refused(name, f"{complaint}: {MERGE}")
