"""From logits to tokens and their log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import cast

import numpy as np
import torch
from torch import Tensor

from inference.masks import Endings, Mask
from inference.noise import uniforms
from inference.state import Choice, Chosen, Chunk, Sequence, TopTokens, Work
from inference.types import LogprobsMode
from inference.warpers import History, warp

NOT_FINITE = "The model's output for this request is not a number; other requests are not affected"


class TorchSampler:
    """Chooses the next token of each chunk that reaches the end of its sequence."""

    def __init__(self, endings: Endings) -> None:
        self._endings = endings

    @torch.inference_mode()
    def choose(self, work: Work, logits: Tensor | None) -> list[Chosen]:
        """Return each sequence's result; `logits` (rows, vocabulary): `logit_rows` rows of each chunk."""
        if logits is None:  # no chunk was computed
            choices = self._sample(_held(work.resumed), work.resumed)
            return [_result((), (), choice) for choice in choices]
        ends = np.cumsum([chunk.logit_rows for chunk in work.chunks]).tolist()
        last, sequences = [], []
        for chunk, end in zip(work.chunks, ends, strict=True):
            if chunk.sequence in work.late:
                chunk.sequence.held = logits[end - 1].clone()
            elif chunk.samples:
                last.append(end - 1)
                sequences.append(chunk.sequence)
        rows = _rows(logits, last)
        if work.resumed:
            rows = torch.cat([rows, _held(work.resumed)])
        chosen = iter(self._sample(rows, [*sequences, *work.resumed]))
        results = []
        for chunk, end in zip(work.chunks, ends, strict=True):
            own = logits[end - chunk.logit_rows : end]
            chooses = chunk.samples and chunk.sequence not in work.late
            results.append(_result(*_of_prompt(chunk, own), next(chosen) if chooses else None))
        return results + [_result((), (), choice) for choice in chosen]

    def _sample(self, logits: Tensor, sequences: Several[Sequence]) -> list[Choice]:
        if not sequences:
            return []
        samplings = [sequence.request.sampling for sequence in sequences]
        histories = [History(s.ids, s.prompt_length) for s in sequences]
        scores = warp(logits, samplings, histories, [self._mask(sequence) for sequence in sequences])
        tokens = scores.argmax(1)
        drawn = [row for row, sampling in enumerate(samplings) if sampling.sample]
        if drawn:
            tokens[drawn] = _draw(_rows(scores, drawn), [sequences[row] for row in drawn])
        basis = _logprobs_basis(logits, scores, [sequence.request.logprobs for sequence in sequences])
        totals = basis.logsumexp(1)
        logprobs = basis.gather(1, tokens[:, None])[:, 0] - totals
        # A NaN, an infinite score or none left: the row's token means nothing.
        logprobs = logprobs.masked_fill(~scores.amax(1).isfinite(), torch.nan)
        top = _top_tokens(basis, totals, [sequence.request.top_n_tokens for sequence in sequences])
        return [Choice(*each) for each in zip(tokens.tolist(), logprobs.tolist(), top, strict=True)]

    def _mask(self, sequence: Sequence) -> Mask | None:
        mask = sequence.guide.mask if sequence.guide is not None else None
        return self._endings.hidden(mask) if sequence.hides_eos else mask


def _held(resumed: Several[Sequence]) -> Tensor:
    """Return the rows that were held, (n, vocabulary)."""
    return torch.stack([cast(Tensor, sequence.held) for sequence in resumed])


def _rows(values: Tensor, rows: Several[int]) -> Tensor:
    """Return some of the rows, without a copy if they are all there is."""
    return values if len(rows) == len(values) else values[rows]


def _draw(scores: Tensor, sequences: Several[Sequence]) -> Tensor:
    """Return one token of each row's distribution: the first whose cumulative mass passes the noise."""
    seeds = np.array([sequence.request.sampling.seed for sequence in sequences], dtype=np.uint64)
    positions = np.array([sequence.length for sequence in sequences], dtype=np.uint64)
    noise = torch.from_numpy(uniforms(seeds, positions)).to(scores.device)
    mass = scores.softmax(1).double().cumsum(1)
    passed = torch.searchsorted(mass, (noise * mass[:, -1])[:, None], right=True)[:, 0]
    return passed.clamp(max=scores.shape[1] - 1)  # past the end only if the row holds NaN


def _logprobs_basis(logits: Tensor, scores: Tensor, modes: Several[LogprobsMode]) -> Tensor:
    """Return of each row what its log-probabilities are of: the raw logits or the warped scores."""
    raw = [row for row, mode in enumerate(modes) if mode is LogprobsMode.RAW]
    if len(raw) == len(modes):
        return logits
    if not raw or scores is logits:
        return scores
    basis = scores.clone()
    basis[raw] = logits[raw]
    return basis


def _top_tokens(basis: Tensor, totals: Tensor, wanted: Several[int]) -> list[TopTokens]:
    """Return the best tokens of each row: those at least as likely as the n-th best, removed ones never."""
    most = min(max(wanted), basis.shape[1])
    if most == 0:
        return [()] * len(wanted)
    values, tokens = basis.topk(min(most + 1, basis.shape[1]), dim=1)  # one more shows whether it ties
    logprobs = (values - totals[:, None]).tolist()
    top = []
    for row, (n, *best) in enumerate(zip(wanted, logprobs, tokens.tolist(), strict=True)):
        if 0 < n < len(best[0]) and best[0][n] == best[0][n - 1] > -np.inf:
            top.append(_with_ties(basis[row], values[row, :n], tokens[row, :n], totals[row]))
        else:
            pairs = zip(best[1][:n], best[0], strict=False)
            top.append(tuple((token, logprob) for token, logprob in pairs if logprob > -np.inf))
    return top


def _with_ties(scores: Tensor, values: Tensor, tokens: Tensor, total: Tensor) -> TopTokens:
    """Return the best tokens of a row with all those that are as likely as the last of them."""
    equal = (scores == values[-1]).nonzero().flatten()
    tokens = torch.cat([tokens[values > values[-1]], equal])
    return tuple(zip(tokens.tolist(), (scores[tokens] - total).tolist(), strict=True))


def _of_prompt(chunk: Chunk, logits: Tensor) -> tuple[tuple[float, ...], tuple[TopTokens, ...]]:
    """Return the raw log-probabilities of the prompt tokens after the positions, and the best there."""
    sequence = chunk.sequence
    if not sequence.wants_prompt_logprobs:
        return (), ()
    targets = torch.from_numpy(sequence.ids[chunk.start + 1 : chunk.stop + 1]).to(logits.device)
    logits = logits[: len(targets)]
    totals = logits.logsumexp(1)
    logprobs = (logits.gather(1, targets[:, None])[:, 0] - totals).tolist()
    wanted = sequence.request.top_n_tokens
    top = _top_tokens(logits, totals, [wanted] * len(logprobs)) if wanted and logprobs else []
    return tuple(logprobs), tuple(top)


def _result(
    prompt_logprobs: tuple[float, ...], prompt_top: tuple[TopTokens, ...], choice: Choice | None
) -> Chosen:
    finite = not np.isnan(prompt_logprobs).any() and (choice is None or not np.isnan(choice.logprob))
    return Chosen(prompt_logprobs, prompt_top, choice) if finite else Chosen(failure=NOT_FINITE)
