"""Sequences in a device's slots whose requests have filters and penalties, and what the host says of them."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass, replace

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from inference.gpu import noise
from inference.gpu.slots import DeviceState, MirroredTable
from inference.gpu.wishes import Wishes
from inference.grammar.masks import Endings
from inference.kv_cache.blocks import blocks_for
from inference.sampling.sampler import Columns, TorchSampler
from inference.sequences.state import Sequence
from inference.types import CoreRequest, LogprobsMode, Sampling

PROMPT = 12  # tokens of each text that are its prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a row's request asks for, and its text so far."""

    sampling: Sampling
    ids: tuple[int, ...] = tuple(range(PROMPT))
    raw: bool = False


class Rows:
    """Rows of logits of requests."""

    def __init__(self, asked: Several[Asked], logits: Tensor) -> None:
        self.logits = logits
        longest = max(len(each.ids) for each in asked)
        self.table = MirroredTable(len(asked), blocks_for(longest))
        self.state = DeviceState(self.table, logits.device, logits.shape[1])
        self.sequences = tuple(self._enter(each) for each in asked)
        self.slots = torch.tensor([each.slot for each in self.sequences], device=logits.device)
        self.lengths = torch.tensor([each.length for each in self.sequences], device=logits.device)
        self.state.update()
        self.state.lengths[self.slots] = self.lengths.int()

    @property
    def wishes(self) -> Wishes:
        return self.state.wish(self.slots.int(), ahead=0)

    def drawn(self) -> Tensor:
        """Return the tokens (R, 2) and log-probabilities by temperature alone."""
        sampled = noise.sample(self.logits, self.state.draws(self.slots, self.lengths))
        return torch.stack([sampled.tokens.double(), sampled.logprobs.double()], 1)

    def by_host(self) -> Columns:
        """Return what the host finds of the same rows."""
        logits = self.logits.float().cpu()
        return TorchSampler(Endings(logits.shape[1], ())).pick(self.sequences, logits)

    def shaped(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return of which rows the device has more to do than temperature."""
        return np.array([bool(row[0]) for row in self.state.wishes.table[self.slots].tolist()])  # type: ignore[union-attr]

    def _enter(self, asked: Asked) -> Sequence:
        sequence = Sequence(
            CoreRequest(
                id="",
                prompt_ids=asked.ids[:PROMPT],
                max_new_tokens=100,
                sampling=asked.sampling,
                logprobs=LogprobsMode.RAW if asked.raw else LogprobsMode.PROCESSED,
                top_n_tokens=0,
                prompt_logprobs=False,
            )
        )
        self.table.enter(sequence)
        for token in asked.ids[PROMPT:]:
            self.table.append(np.array([sequence.slot]), np.array([token]))
        return sequence


def random_logits(
    rows: int, vocabulary: int, *, seed: int = 0, levels: int = 0, scale: float = 2.0
) -> Tensor:
    """Return random logits; with `levels`, of few different values, so that there are ties."""
    logits = scale * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))
    return (logits * levels).round() / levels if levels else logits


filters = st.builds(
    Sampling,
    sample=st.just(value=True),
    top_k=st.sampled_from([0, 0, 1, 2, 7, 50, 10_000]),
    top_p=st.sampled_from([1.0, 1.0, 1e-9, 0.1, 0.5, 0.9, 0.999999]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.5, 1.0]),
)
penalties = st.tuples(
    st.sampled_from([1.0, 1.0, 1.2, 0.7, 1e-40, 1e35]),
    st.sampled_from([0.0, 0.0, 0.3, -1.5]),
    st.sampled_from([0.0, 0.0, 0.7, -0.2]),
)


@st.composite
def asks(draw: st.DrawFn, vocabulary: int) -> Asked:
    """Return a request that may have anything that a device knows."""
    sample = draw(st.booleans())
    repetition, frequency, presence = draw(st.one_of(st.just((1.0, 0.0, 0.0)), penalties))
    sampling = replace(
        draw(filters),
        sample=sample,
        temperature=draw(st.sampled_from([1.0, 0.3, 0.8, 2.5])) if sample else 1.0,
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
        seed=draw(st.integers(0, 2**64 - 1)),
    )
    ids = draw(st.lists(st.integers(0, vocabulary - 1), min_size=PROMPT, max_size=3 * PROMPT))
    return Asked(sampling=sampling, ids=tuple(ids), raw=draw(st.booleans()))
