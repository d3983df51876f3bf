"""Whether a way to run a model gives the model's own numbers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.errors import ModelUnavailable
from inference.kv_cache.blocks import blocks_for
from inference.levels.noise import MASKED, apart, leaves, moving, noise_of_pieces
from inference.levels.proof_steps import Steps
from inference.models.weights import asking_for_weights
from inference.planning.positions import ENDLESS, first_position
from inference.sequences.computing import Runner
from inference.sequences.state import Chunk, Decodes, Sequence, SlotTable, pack
from inference.shortage import is_shortage
from inference.telling import told
from inference.types import CoreRequest, LogprobsMode, Sampling

LOG = logging.getLogger(__name__)

_TOLERANCE = 1e-4  # of the largest logit, in float32
_FLOAT_TIMES, _MOST_FLOAT_NOISE = 20.0, 1e-2  # of what is off where all is off by a rounding, up to this
_NOISE = {torch.float16: 1e-2, torch.bfloat16: 5e-2}  # of a position's logits: what 16 bits round away
_OWN_TIMES, _MOST_NOISE = 3.0, 0.15  # of what its own code differs from itself, up to this
_AGREED = 0.9  # of the positions whose likeliest token isn't a matter of rounding
ROUNDED = 0.25  # of the logits' norm: what 8 bits may change; a wrong layer changes more than all of it
PROOF_BLOCKS = 8
_BLOCKS = ([7, 2, 0, 5, 3, 6], [4, 1])  # of the two prompts: out of order
_PAGES = len(_BLOCKS[0])
_LEAST = (5, 4)  # tokens of the prompts: fewer can't be cut as the steps do
_SMALL = 300_000_000  # parameters of a model for which longer prompts take no time worth mentioning


@dataclass(frozen=True, slots=True)
class Verdict:
    """How near a runner came to the model's own logits."""

    holds: bool
    error: float  # the norm of the difference, as a part of the logits' norm; infinite if it raised
    complaint: str = ""  # what it raised, or that it hides other tokens
    nearly: bool = False  # it doesn't hold, and it may be a matter of how float32 is rounded
    logits: Tensor | None = None  # (tokens, vocabulary), whatever order they were computed in


class Proof:
    """The model's own logits of two prompts, computed by its own code before anything is changed."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype, positions: int = ENDLESS) -> None:
        self.prompts = self._make_prompts(model, positions)
        called: set[nn.Module] = set()
        with _noting_calls(model, called), asking_for_weights():
            self._expected = [self._own_logits(model, prompt) for prompt in self.prompts]
        self.idle = WeakSet(_idle(model, called))  # modules of parts that text doesn't come through
        self.bypassed = WeakSet(_bypassed(called))  # whose weights their parents may have read by themselves
        # What 16 bits round away of some models is more: of those that keep a state, above all
        own = self._own_noise(model) if dtype in _NOISE else 0.0
        self._noise = max(_NOISE[dtype], min(_OWN_TIMES * own, _MOST_NOISE)) if dtype in _NOISE else None
        self.tolerance = _TOLERANCE
        self._masked = max(MASKED, 0.9 * torch.finfo(dtype).min)

    @property
    def finite(self) -> bool:
        """Return whether the model's own logits are numbers, without which nothing can be proven.

        It may hide some tokens, such as those that only fill its vocabulary up, but not all of them.
        """
        return all(
            bool((each < math.inf).all()) and bool((each > self._masked).any(-1).all())
            for each in self._expected
        )

    def require_numbers(self) -> None:
        """Raise ModelUnavailable if the model's own logits are none."""
        if not self.finite:
            raise ModelUnavailable(
                "The model's own logits are NaN or infinite, so it can't be served: its weights are damaged "
                "(download or convert them again), or too big for --dtype float16 (use bfloat16 or float32)"
            )

    @property
    def columns(self) -> int:
        """Return how many logits a position has."""
        return self._expected[0].shape[1]

    def check(
        self, make_runner: Callable[[], Runner[Tensor]], steps: Steps, *, rounded: bool = False
    ) -> Verdict:
        """Compare the logits when the prompts are computed in pieces; `rounded`: nearly right will do."""
        return self.judge(lambda: self._in_steps(make_runner(), steps), rounded=rounded)

    def judge(self, compute: Callable[[], Tensor], *, rounded: bool = False) -> Verdict:
        """Compare what is computed of the prompts, (positions, vocabulary), or say why it can't be."""
        try:
            logits = compute()
        except Exception as error:  # any model's code may fail in any way on what it wasn't written for
            if is_shortage(error):
                raise  # slower ways would be taken, and stay, for a moment's want
            LOG.debug("A way to run the model failed", exc_info=True)
            return Verdict(False, np.inf, told(error))
        return self.compare(logits, torch.cat(self._expected), rounded=rounded)

    def compare(self, found: Tensor, expected: Tensor, *, rounded: bool = False) -> Verdict:
        """Compare logits (positions, vocabulary) that the model's own code shows, and which it hides."""
        shown, wrong = expected > self._masked, ~(found < math.inf)
        hides_others = not torch.equal(found > self._masked, shown)
        compared = shown & (found > self._masked) | wrong
        difference, own = (each.where(compared, 0) for each in (found - expected, expected))
        error = float(difference.norm() / own.norm())
        noise = self._noise
        if rounded:
            near = error <= ROUNDED
        elif noise is not None:
            near = error <= ROUNDED and _differ_by_noise(found, expected, compared, noise)
        else:
            near = bool(difference.abs().max() <= self.tolerance * own.abs().max())
        complaint = "it hides other tokens than the model's own code" if hides_others and near else ""
        exactly = not rounded and noise is None
        nearly = exactly and not (near or hides_others) and error <= _MOST_FLOAT_NOISE
        return Verdict(near and not hides_others, error, complaint, nearly, logits=found)

    def try_adapter(self, runner: Runner[Tensor], adapter: int, steps: Steps) -> str:
        """Run a runner by an adapter, on prompts and in steps; return what is wrong, "" if nothing is."""
        return next(filter(None, trial(self.prompts, runner, adapter, steps)), "")

    def _in_steps(self, runner: Runner[Tensor], steps: Steps) -> Tensor:
        table = SlotTable(slots=2, pages=_PAGES)
        sequences = [_sequence(table, index, prompt) for index, prompt in enumerate(self.prompts)]
        found: dict[str, list[Tensor]] = {sequence.id: [] for sequence in sequences}
        for chunks in steps(sequences):
            logits = runner.run(pack(table, Decodes(), chunks))
            pieces = logits.split([chunk.size for chunk in chunks])
            for chunk, piece in zip(chunks, pieces, strict=True):
                found[chunk.sequence.id].append(piece.clone())
        return torch.cat([torch.cat(found[sequence.id]) for sequence in sequences])

    def _make_prompts(self, model: PreTrainedModel, positions: int) -> list[NDArray[np.int64]]:
        return proof_prompts(model, positions)

    def _own_logits(self, model: PreTrainedModel, prompt: NDArray[np.int64]) -> Tensor:
        """Return the model's own logits, (tokens, vocabulary), of one whole prompt."""
        with torch.inference_mode():
            ids = torch.from_numpy(prompt)[None].to(model.device)
            logits: Tensor = model(input_ids=ids, use_cache=False).logits[0].float()
        if logits.dim() != 2 or len(logits) != len(prompt):
            raise ValueError(f"its logits of {len(prompt)} tokens have the shape {tuple(logits.shape)}")
        return logits

    def allow_for_rounding(self, model: PreTrainedModel) -> bool:
        """Allow for what the model's own code rounds away of float32; return whether more is allowed by that.

        Of most models that is a hundredth of what is allowed at first. Where roundings grow from layer to
        layer, whoever adds up in another order is further off, and so is the model's own code of itself.
        The model has to be as it was, as its own code is what is run. Positions are counted by their median:
        where two experts are nearly equal, rounding decides which of them a token goes to.
        """
        if self._noise is not None:
            return False
        with moving(leaves(model)):
            own = apart(self._own_logits(model, self.prompts[0]), self._expected[0])
        allowed = max(self.tolerance, min(_FLOAT_TIMES * own, _MOST_FLOAT_NOISE))
        more, self.tolerance = allowed > self.tolerance, allowed
        return more

    def _own_noise(self, model: PreTrainedModel) -> float:
        """Return how far the model's own code is off itself, by the larger of two ways to see it.

        One is to have it compute a prompt token by token. Where a CPU or GPU rounds in one way whatever the
        shape, that shows little; the other is to move what it is given by as much as one rounding does.
        """
        pieces = noise_of_pieces(model, self.prompts[0], self._expected[0])
        return max(pieces, self._noise_of_rounding(model))

    def _noise_of_rounding(self, model: PreTrainedModel) -> float:
        """Return how far its logits are off when its embeddings are, at random, by up to a rounding."""
        try:
            with moving([model.get_input_embeddings()]):
                return apart(self._own_logits(model, self.prompts[0]), self._expected[0])
        except torch.OutOfMemoryError:
            raise
        except Exception:  # what gives the embeddings may give anything
            return 0.0

    def run(self, runner: Runner[Tensor]) -> None:
        """Run a runner once, on whole prompts."""
        table = SlotTable(slots=2, pages=_PAGES)
        sequences = [_sequence(table, index, prompt) for index, prompt in enumerate(self.prompts)]
        runner.run(pack(table, Decodes(), [Chunk(each, 0, each.length) for each in sequences]))


def trial(
    prompts: list[NDArray[np.int64]], runner: Runner[Tensor], adapter: int, steps: Steps
) -> Iterator[str]:
    """Run a runner by an adapter, a step at a time; yield what is wrong, "" if nothing is."""
    try:
        for scored in (True, False):  # a head may be given fewer tokens than there are, and all of a cache
            table = SlotTable(slots=2, pages=_PAGES)
            running = [
                _sequence(table, index, prompt, adapter, scored=scored)
                for index, prompt in enumerate(prompts)
            ]
            whole = [[Chunk(each, 0, each.length) for each in running]]
            for pieces in whole if scored else steps(running):
                finite = bool((runner.run(pack(table, Decodes(), pieces)) < math.inf).all())
                yield "" if finite else "with what it adds logits are NaN or infinite"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # any model's code may use its linears in any way
        LOG.debug("An adapter can't be used", exc_info=True)
        cause = error.__cause__ or error
        yield f"with what it adds the model's code fails ({type(cause).__name__}: {cause})"


def _differ_by_noise(found: Tensor, expected: Tensor, compared: Tensor, noise: float) -> bool:
    """Return whether logits (positions, vocabulary) differ by rounding: most positions, and what they say.

    Not all: where two experts are nearly equal, rounding decides which of them a token goes to.
    """
    difference, own = (each.where(compared, 0) for each in (found - expected, expected))
    errors = difference.norm(dim=-1) / own.norm(dim=-1)
    best = expected.topk(2).values
    clear = best[:, 0] - best[:, 1] > 8 * noise * _deviation(own, compared)
    agreed = (found.argmax(-1) == expected.argmax(-1))[clear].sum()
    return bool(errors.median() <= noise) and bool(agreed >= _AGREED * clear.sum())


def _deviation(logits: Tensor, compared: Tensor) -> Tensor:
    """Return the standard deviation (positions) of the logits that are compared; the others are 0."""
    count = compared.sum(-1)
    mean = logits.sum(-1) / count
    squares = ((logits - mean[:, None]) * compared).square().sum(-1)
    return (squares / (count - 1).clamp(min=1)).sqrt()


def proof_prompts(model: PreTrainedModel, positions: int = ENDLESS) -> list[NDArray[np.int64]]:
    """Return two prompts of random tokens, always the same ones: a long and a short one.

    They stay within so many positions, behind which some models compute otherwise, and without the id that
    is padding wherever it stands, and has no position, in some.
    """
    generator = np.random.default_rng(0)
    rows = model.get_input_embeddings().weight.shape[0]
    sizes = (83, 21) if is_small(model) else (19, 6)
    first = first_position(model.config.get_text_config())
    prompts = [
        generator.integers(rows, size=min(size, max(positions, least)))
        for size, least in zip(sizes, _LEAST, strict=True)
    ]
    return [np.where(prompt == first - 1, first % rows, prompt) for prompt in prompts] if first else prompts


def is_small(model: nn.Module) -> bool:
    """Return whether long prompts take no time worth mentioning."""
    return sum(parameter.numel() for parameter in model.parameters()) <= _SMALL


def scored_request(
    id: str, prompt: tuple[int, ...], adapter: int = -1, *, scored: bool = True
) -> CoreRequest:
    """Return a request that wants the logits of all of its prompt's tokens, or of the last alone."""
    return CoreRequest(
        id=id,
        prompt_ids=prompt,
        max_new_tokens=1,
        sampling=Sampling(),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=0,
        prompt_logprobs=scored,
        adapter=adapter,
    )


@contextmanager
def _noting_calls(model: PreTrainedModel, called: set[nn.Module]) -> Iterator[None]:
    """Have the model's modules that are called put into a set."""

    def note(module: nn.Module, _: object) -> None:
        called.add(module)

    hooks = [module.register_forward_pre_hook(note) for module in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _idle(module: nn.Module, called: set[nn.Module]) -> Iterator[nn.Module]:
    """Return the modules of parts that weren't called; of a single one others may have used the weights."""
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict) or not called.isdisjoint(child.modules()):
            yield from _idle(child, called)
        elif any(True for _ in child.children()):
            yield from child.modules()


def _bypassed(called: set[nn.Module]) -> Iterator[nn.Module]:
    """Return the modules that weren't called though what they belong to was."""
    for module in called:
        yield from (child for child in module.children() if child not in called)


def _sequence(
    table: SlotTable, index: int, prompt: NDArray[np.int64], adapter: int = -1, *, scored: bool = True
) -> Sequence:
    """Return a prompt as a running sequence in blocks out of order; `scored`: it wants all logits."""
    sequence = Sequence(scored_request(str(index), tuple(prompt.tolist()), adapter, scored=scored))
    table.enter(sequence)
    table.extend(sequence, _BLOCKS[index][: blocks_for(sequence.length)])
    return sequence
