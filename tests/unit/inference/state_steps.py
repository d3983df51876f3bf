"""Texts computed in any steps, of which some are computed twice, as after a failure."""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch
from hypothesis import strategies as st
from torch import Tensor

from codegen.toys import prompts
from inference.kv_cache.blocks import blocks_for
from inference.levels.proof import scored_request
from inference.sequences.computing import Runner
from inference.sequences.state import Chunk, Decodes, Sequence, SlotTable, pack

TEXTS = prompts(40, 23, 7)
PAGES = 3  # of each
Step = list[tuple[int, int, int, bool]]  # pieces: of which text, from where, to where, and whether it fails


@st.composite
def schedules(draw: st.DrawFn) -> list[Step]:
    """Return steps of pieces, each of which may fail after it was computed."""
    sizes = st.lists(st.sampled_from([1, 1, 1, 2, 5, 16]), min_size=1)
    cuts = []
    for at, text in enumerate(TEXTS):
        ends = [*accumulate(draw(sizes))]
        bounds = [0, *(end for end in ends if end < len(text)), len(text)]
        cuts.append([(at, *each) for each in pairwise(bounds)])
    steps: list[Step] = []
    while any(cuts):
        going = [each for each in cuts if each]
        taken = draw(st.lists(st.sampled_from(range(len(going))), min_size=1, unique=True))
        steps.append([(*going[at].pop(0), draw(st.booleans())) for at in taken])
    return steps


def computed(runner: Runner[Tensor], steps: list[Step]) -> list[Tensor]:
    """Return the logits of each text."""
    table = SlotTable(slots=len(TEXTS), pages=PAGES)
    sequences = [Sequence(scored_request(str(at), text)) for at, text in enumerate(TEXTS)]
    for at, sequence in enumerate(sequences):
        table.enter(sequence)
        table.extend(sequence, range(at * PAGES, at * PAGES + blocks_for(sequence.length)))
    found: list[list[Tensor]] = [[] for _ in TEXTS]
    for step in steps:
        chunks = [Chunk(sequences[at], start, stop) for at, start, stop, _ in step]
        failed = [chunk for chunk, (*_, fails) in zip(chunks, step, strict=True) if fails]
        if failed:  # as of a step that fails it isn't known how far it came
            runner.run(pack(table, Decodes(), failed))
        logits = runner.run(pack(table, Decodes(), chunks)).clone()
        for chunk, part in zip(chunks, logits.split([each.size for each in chunks]), strict=True):
            found[int(chunk.sequence.id)].append(part)
    return [torch.cat(parts) for parts in found]
