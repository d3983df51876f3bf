"""From logits to tokens and their log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np
import torch
from torch import Tensor

from inference.noise import uniforms
from inference.state import Choice, Chosen, Chunk, Sequence
from inference.types import LogprobsMode
from inference.warpers import History, warp

NOT_FINITE = "The model's output for this request is not a number; other requests are not affected"


class TorchSampler:
    """Chooses the next token of each chunk that reaches the end of its sequence."""

    @torch.inference_mode()
    def choose(self, chunks: Several[Chunk], logits: Tensor) -> list[Chosen]:
        """Return each chunk's result; `logits` (rows, vocabulary) holds `logit_rows` rows of each."""
        ends = np.cumsum([chunk.logit_rows for chunk in chunks]).tolist()
        last = [end - 1 for chunk, end in zip(chunks, ends, strict=True) if chunk.samples]
        sequences = [chunk.sequence for chunk in chunks if chunk.samples]
        choices = iter(self._sample(_rows(logits, last), sequences))
        results = []
        for chunk, end in zip(chunks, ends, strict=True):
            prompt = _prompt_logprobs(chunk, logits[end - chunk.logit_rows : end])
            results.append(_result(prompt, next(choices) if chunk.samples else None))
        return results

    def _sample(self, logits: Tensor, sequences: Several[Sequence]) -> list[Choice]:
        if not sequences:
            return []
        samplings = [sequence.request.sampling for sequence in sequences]
        scores = warp(logits, samplings, [History(s.ids, s.prompt_length) for s in sequences])
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


def _top_tokens(basis: Tensor, totals: Tensor, wanted: Several[int]) -> list[tuple[tuple[int, float], ...]]:
    """Return the best tokens of each row: those at least as likely as the n-th best, removed ones never."""
    most = min(max(wanted), basis.shape[1])
    if most == 0:
        return [()] * len(wanted)
    values, tokens = basis.topk(most, dim=1)
    return [
        _row_top(basis[row], values[row, :n], tokens[row, :n], totals[row]) if n else ()
        for row, n in enumerate(min(n, most) for n in wanted)
    ]


def _row_top(scores: Tensor, values: Tensor, tokens: Tensor, total: Tensor) -> tuple[tuple[int, float], ...]:
    equal = (scores == values[-1]).nonzero().flatten()
    better = values > values[-1]
    tokens = torch.cat([tokens[better], equal])
    logprobs = scores[tokens] - total
    pairs = zip(tokens.tolist(), logprobs.tolist(), strict=True)
    return tuple((token, logprob) for token, logprob in pairs if logprob > -np.inf)


def _prompt_logprobs(chunk: Chunk, logits: Tensor) -> tuple[float, ...]:
    """Return the raw log-probabilities of the prompt tokens after each of the chunk's positions."""
    sequence = chunk.sequence
    if not sequence.wants_prompt_logprobs:
        return ()
    targets = torch.from_numpy(sequence.ids[chunk.start + 1 : chunk.stop + 1]).to(logits.device)
    logits = logits[: len(targets)]
    return tuple((logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(1)).tolist())


def _result(prompt_logprobs: tuple[float, ...], choice: Choice | None) -> Chosen:
    finite = not np.isnan(prompt_logprobs).any() and (choice is None or not np.isnan(choice.logprob))
    return Chosen(prompt_logprobs, choice) if finite else Chosen(failure=NOT_FINITE)
