"""From logits to tokens and their log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Several
from functools import partial
from logging import getLogger
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from inference.grammar.masks import Endings, Mask
from inference.kernels.native import Library
from inference.prompt_tops import TopTokens
from inference.sampling.candidates import filtered
from inference.sampling.filters import Floats
from inference.sampling.noise import uniforms
from inference.sampling.penalties import Bias
from inference.sampling.recipe import Recipe
from inference.sampling.rows import Statistics, draw, statistics
from inference.sampling.tops import of_candidates, of_prompt, of_rows
from inference.sampling.warpers import History, warp
from inference.sequences.chosen import Chosen, Scored
from inference.sequences.faults import explain, working_for
from inference.sequences.state import Chunk, Integers, Pieces, Sequence
from inference.sequences.work import Work
from inference.shortage import is_shortage

LOG = getLogger(__name__)

NOT_FINITE = "The model's output for this request is not a number; other requests are not affected"


class TorchSampler:
    """Chooses the next token of each sequence whose tokens are computed to the end.

    What a row gets depends on its logits, its request and its own text, never on the rows beside it.
    """

    def __init__(
        self,
        endings: Endings,
        library: Library | None = None,
        find: Callable[[Tensor], Statistics] | None = None,
        start: tuple[int, ...] = (),
    ) -> None:
        """`find` finds the statistics of logits, if the runner knows them; else `library` does.

        `start`: what a decoder begins with whose prompts an encoder reads.
        """
        self._endings = endings
        self._start = np.array(start, dtype=np.int64)
        self._library = library
        self._find = find or partial(statistics, library=library)
        self._recipe = Recipe(())
        self._biases: WeakKeyDictionary[Sequence, Bias | None] = WeakKeyDictionary()

    def tokens_only(self, pieces: Pieces) -> bool:
        """Return whether `choose` will ask the pieces' logits for nothing but each row's best token.

        As long as whoever decodes gets a token, and nobody else.
        """
        decodes = pieces.decodes
        if not decodes or len(pieces.rows) != len(decodes):
            return False
        return self._recipe_of(decodes).asks_nothing

    def choose(self, work: Work, logits: Tensor | None) -> Chosen:
        """Return what `logits` (rows, vocabulary), those of the pieces' `rows`, say of each sequence.

        Raises what finding the statistics of plain rows does, for all of them: parts of the step then tell
        whose it is.
        """
        sequences, recipe = work.pieces.decodes, self._recipe
        same = sequences and work.sequences is sequences is recipe.sequences
        if logits is None or not same or not recipe.all_plain:
            return self._choose(work, logits)
        return _plainly(sequences, self._find(logits))

    def choose_rows(self, sequences: tuple[Sequence, ...], logits: Tensor, rows: Integers) -> Chosen:
        """Return what some `rows` of a step's logits say of sequences that go on; raises as `choose` does."""
        if self._recipe_of(sequences).all_plain:
            return _plainly(sequences, self._find(logits).of(rows))
        with torch.inference_mode():
            return self.pick(sequences, _rows(logits, rows)).chosen(sequences, {})

    def select(self, logits: Tensor, rows: Integers) -> Tensor:
        """Return some of the rows of logits (n, vocabulary)."""
        return _rows(logits, rows)

    @torch.inference_mode()
    def _choose(self, work: Work, logits: Tensor | None) -> Chosen:
        prompts = {} if logits is None else self.read(work, logits)
        sequences = work.sequences
        columns = self.pick(sequences, _values(work, logits)) if sequences else Columns(0)
        return columns.chosen(sequences, prompts)

    def read(self, work: Work, logits: Tensor) -> dict[Sequence, Scored]:
        """Return what the logits of the pieces' `rows` say of their prompts; keep the rows of who is late."""
        if work.late:
            for sequence, row in zip(work.pieces.sampling, last_rows(work.pieces), strict=True):
                if sequence in work.late:
                    sequence.held = logits[row].clone()
        return self._score_prompts(work, logits)

    def pick(self, sequences: tuple[Sequence, ...], logits: Tensor) -> Columns:
        """Return what is found of the sequences' logits (n, vocabulary), in float32.

        Where that raises it is done row by row, and those that raise alone have failed; raises only if
        all do, or for want of memory.
        """
        try:
            return self._pick(sequences, logits)
        except Exception as error:
            if len(sequences) == 1 or is_shortage(error):
                raise
            return self._pick_each(sequences, logits, error)

    def _pick(self, sequences: tuple[Sequence, ...], logits: Tensor) -> Columns:
        columns = Columns(len(sequences))
        self._fill(columns, logits, self._recipe_of(sequences))
        return columns

    def _recipe_of(self, sequences: tuple[Sequence, ...]) -> Recipe:
        if sequences is not self._recipe.sequences:
            self._recipe = Recipe(sequences)
        return self._recipe

    def _pick_each(self, sequences: tuple[Sequence, ...], logits: Tensor, error: Exception) -> Columns:
        columns = Columns(len(sequences))
        for row, sequence in enumerate(sequences):
            try:
                columns.put(np.array([row]), self._pick((sequence,), logits[row : row + 1]))
            except Exception as own:
                if is_shortage(own):
                    raise
                LOG.exception("No token can be chosen for request %s", sequence.id)
                columns.failures[row] = explain(sequence.id, own)
        if len(columns.failures) == len(sequences):
            raise error
        return columns

    def _fill(self, columns: Columns, logits: Tensor, recipe: Recipe) -> None:
        if len(recipe.shaped):
            scores = self._warp(_rows(logits, recipe.shaped), recipe)
            noise = _noise(recipe)
            # A NaN, an infinite score or none left: the row's token means nothing
            broken = ~scores.amax(1).isfinite().cpu().numpy()
            if len(recipe.filtered):
                columns.fill_filtered(scores, noise, recipe)
            if len(recipe.best):
                columns.fill_best(scores, self._library, recipe)
            if len(recipe.whole):
                columns.fill_whole(scores, noise, recipe)
        if recipe.reads_logits:
            columns.fill_own(logits, self._find(logits), recipe)
        if len(recipe.shaped):
            columns.logprobs[recipe.shaped[broken]] = np.nan

    def _warp(self, logits: Tensor, recipe: Recipe) -> Tensor:
        partners = recipe.partners
        histories = [self._history(each) for each in partners] if recipe.looks_back else ()
        masks, biases = [self._mask(each) for each in partners], [self._bias(each) for each in partners]
        return warp(logits, recipe.samplings, histories, masks, biases)

    def _history(self, sequence: Sequence) -> History:
        """Return what penalties look at: behind an encoder the decoder's tokens alone, as in transformers."""
        if not len(self._start):
            return History(sequence.ids, sequence.prompt_length)
        written = np.concatenate([self._start, sequence.ids[sequence.prompt_length :]])
        return History(written, len(self._start))

    def _bias(self, sequence: Sequence) -> Bias | None:
        if not sequence.request.sampling.logit_bias:
            return None
        if sequence not in self._biases:
            self._biases[sequence] = Bias.of(sequence.request.sampling.logit_bias)
        return self._biases[sequence]

    def _mask(self, sequence: Sequence) -> Mask | None:
        mask = sequence.guide.mask if sequence.guide is not None else None
        return self._endings.hidden(mask) if sequence.hides_eos else mask

    def _score_prompts(self, work: Work, logits: Tensor) -> dict[Sequence, Scored]:
        scored, end = {}, len(work.pieces.decodes)
        for chunk in work.pieces.prompts:
            start, end = end, end + chunk.logit_rows
            if chunk.sequence.wants_prompt_logprobs and chunk.sequence not in work.gone:
                with working_for(chunk.sequence):
                    scored[chunk.sequence] = self._score_prompt(chunk, logits[start:end].float())
        return scored

    def _score_prompt(self, chunk: Chunk, logits: Tensor) -> Scored:
        """Return the raw log-probabilities of the prompt tokens after the positions, and the best there."""
        sequence = chunk.sequence
        targets = torch.from_numpy(sequence.ids[chunk.start + 1 : chunk.stop + 1]).to(logits.device)
        logits = logits[: len(targets)]
        if not len(targets):
            return Scored(())
        totals = statistics(logits, self._library).totals
        known, last = targets < logits.shape[1], logits.shape[1] - 1
        found = logits.gather(1, targets.clamp(max=last)[:, None])[:, 0].double()
        found = found.where(known, -math.inf)  # what has an embedding and no logit: marks of images
        logprobs = found.cpu().numpy() - totals
        wanted = sequence.request.prompt_top_n_tokens
        return Scored(tuple(logprobs.tolist()), of_prompt(logits, totals, wanted) if wanted else None)


class Columns:
    """What is found of n rows; filled by parts, those of the rows' own scores last."""

    def __init__(self, count: int) -> None:
        self.tokens: Integers = np.zeros(count, dtype=np.int64)
        self.logprobs: Floats = np.zeros(count)
        self.tops: list[TopTokens] | None = None  # None: nobody asked
        self.failures: dict[int, str] = {}  # rows of which nothing could be found, and why

    def chosen(self, sequences: tuple[Sequence, ...], prompts: dict[Sequence, Scored]) -> Chosen:
        """Return what was found; a row or a prompt that is not a number is its sequence's failure."""
        broken = np.isnan(self.logprobs)
        failures = {sequences[row]: NOT_FINITE for row in broken.nonzero()[0]} if broken.any() else {}
        failures |= {sequences[row]: why for row, why in self.failures.items()}
        for sequence, scored in prompts.items():
            if np.isnan(scored.logprobs).any():
                failures[sequence] = NOT_FINITE
        return Chosen(self.tokens, self.logprobs.tolist(), self.tops, prompts, failures)

    def put(self, rows: Integers, others: Columns) -> None:
        """Take what was found of some of the rows."""
        self.tokens[rows], self.logprobs[rows] = others.tokens, others.logprobs
        if others.tops is not None:
            self._put_tops(rows, others.tops)
        self.failures |= {int(rows[row]): why for row, why in others.failures.items()}

    def fill_filtered(self, scores: Tensor, noise: Floats, recipe: Recipe) -> None:
        """Fill in what filters leave a choice in."""
        some, rows = recipe.filtered, recipe.shaped[recipe.filtered]
        left = filtered(_rows(scores, some), recipe.filters)
        totals = left.totals()
        tokens, values = left.first()
        if recipe.drawn[some].any():
            drawn, scored = left.draw(noise[some])
            tokens = np.where(recipe.drawn[some], drawn, tokens)
            values = np.where(recipe.drawn[some], scored, values)
        with np.errstate(invalid="ignore"):
            self.tokens[rows], self.logprobs[rows] = tokens, values - totals
        wanted = recipe.processed_tops(rows)
        if any(wanted):
            self._put_tops(rows, of_candidates(left, totals, wanted))

    def fill_best(self, scores: Tensor, library: Library | None, recipe: Recipe) -> None:
        """Fill in the best of all tokens."""
        scores = _rows(scores, recipe.best)
        found = statistics(scores, library)
        self._put(recipe.shaped[recipe.best], scores, found.tokens, found.totals, recipe)

    def fill_whole(self, scores: Tensor, noise: Floats, recipe: Recipe) -> None:
        """Fill in what is drawn of all tokens."""
        scores = _rows(scores, recipe.whole)
        self._put(recipe.shaped[recipe.whole], scores, *draw(scores, noise[recipe.whole]), recipe)

    def fill_own(self, logits: Tensor, found: Statistics, recipe: Recipe) -> None:
        """Fill in the rows that nothing was done with, and what is said of the model's own scores."""
        rows = recipe.own
        if len(recipe.plain) == len(self.tokens):
            self.tokens, self.logprobs = found.tokens, found.best - found.totals
        else:
            self.tokens[recipe.plain] = found.tokens[recipe.plain]
            self.logprobs[rows] = _pick(_rows(logits, rows), self.tokens[rows]) - found.totals[rows]
        wanted = [recipe.tops[row] for row in rows]
        if any(wanted):
            self._put_tops(rows, of_rows(_rows(logits, rows), found.totals[rows], wanted))

    def _put(self, rows: Integers, scores: Tensor, tokens: Integers, totals: Floats, recipe: Recipe) -> None:
        self.tokens[rows] = tokens
        self.logprobs[rows] = _pick(scores, tokens) - totals
        wanted = recipe.processed_tops(rows)
        if any(wanted):
            self._put_tops(rows, of_rows(scores, totals, wanted))

    def _put_tops(self, rows: Integers, tops: list[TopTokens]) -> None:
        if self.tops is None:
            self.tops = [()] * len(self.tokens)
        for row, top in zip(rows.tolist(), tops, strict=True):
            self.tops[row] = top


def _plainly(sequences: tuple[Sequence, ...], found: Statistics) -> Chosen:
    """Return the best tokens of rows that nothing is done with.

    In lists: while a step computes, all that Python knew leaves the caches, and numpy's functions take long
    to come back for so few numbers.
    """
    scores = zip(found.best.tolist(), found.totals.tolist(), strict=True)
    logprobs = [best - total for best, total in scores]
    broken = [row for row, logprob in enumerate(logprobs) if logprob != logprob]
    return Chosen(found.tokens, logprobs, failures={sequences[row]: NOT_FINITE for row in broken})


def _values(work: Work, logits: Tensor | None) -> Tensor:
    """Return the logits (n, vocabulary) of the sequences that get a token."""
    if logits is None:
        return held_rows(work.resumed)
    if work.sequences is work.pieces.decodes:  # as in most steps: a row for each
        return logits
    last = last_rows(work.pieces)
    if work.late:
        pairs = zip(work.pieces.sampling, last, strict=True)
        last = np.array([row for sequence, row in pairs if sequence not in work.late], dtype=np.int64)
    values = _rows(logits, last)
    return torch.cat([values, held_rows(work.resumed)]) if work.resumed else values


def held_rows(sequences: Several[Sequence]) -> Tensor:
    """Return the rows of logits (n, vocabulary) that were kept until their masks came."""
    return torch.stack([cast(Tensor, sequence.held) for sequence in sequences])


def last_rows(pieces: Pieces) -> Integers:
    """Return which row of logits each sequence's next token is chosen by."""
    rows, end = list(range(len(pieces.decodes))), len(pieces.decodes)
    for chunk in pieces.prompts:
        end += chunk.logit_rows
        if chunk.samples:
            rows.append(end - 1)
    return np.array(rows, dtype=np.int64)


def _rows(values: Tensor, rows: Integers) -> Tensor:
    """Return some of the rows, without a copy if they are all there is."""
    return values if len(rows) == len(values) else values[torch.from_numpy(rows).to(values.device)]


def _pick(scores: Tensor, tokens: Integers) -> Floats:
    """Return the score of one token of each row."""
    at = torch.from_numpy(tokens).to(scores.device)
    return scores.gather(1, at[:, None])[:, 0].double().cpu().numpy()


def _noise(recipe: Recipe) -> Floats:
    positions = np.array([sequence.length for sequence in recipe.partners], dtype=np.uint64)
    return uniforms(recipe.seeds, positions)
