"""The way down from the best level: what all ladders of levels have in common.

The model's own eager forward, computed before anything is changed, is the measure of each level;
each attempt leaves the model as it was if it fails.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.cpu.batched import BatchedRunner, Part, find_parts
from inference.cpu.runner import SequentialRunner
from inference.errors import ModelUnavailable
from inference.kernels.state_parts import StateKernels
from inference.levels.adapted import leave_out
from inference.levels.exactness import is_heavy, same_bits
from inference.levels.latents import choose_latents, expand_latents
from inference.levels.options import Options
from inference.levels.packable import changes_with_others, find_layers
from inference.levels.proof import PROOF_BLOCKS, Proof, Verdict, is_small
from inference.levels.proof_steps import (
    Steps,
    alone_steps,
    odd_steps,
    packed_steps,
    padded_steps,
    sequential_steps,
    single_steps,
)
from inference.levels.served import Level, MakeModel, MakeRunner, Served
from inference.models.attending import attend_by
from inference.models.fuse import merge_linears
from inference.models.linears import Packed, make_linear
from inference.models.lora import Adapting, MakeLinear, Multiply
from inference.models.share import kept_by_all
from inference.models.trace import eager_attention
from inference.planning.positions import changing_length
from inference.recurrent.cache import StateCache, put_back
from inference.recurrent.modules import StateModule, rebuild
from inference.sequences.computing import Runner
from inference.shortage import is_shortage
from inference.telling import told

if TYPE_CHECKING:
    from inference.vision.eyes import Eyes

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A level that is about to be tried."""

    level: Level
    make_runner: MakeRunner
    kv_dtype: torch.dtype
    packed: tuple[Packed, ...] = ()
    kv_elements: int | None = None  # a token's; None: those that attention was seen to keep
    also: tuple[Steps, ...] = ()  # in which it must hold, too
    rounded: bool = False  # nearly right will do
    invariant: bool = False  # every row may be computed in one way whatever is beside it: to be seen
    make_model: MakeModel | None = None


class Climb:
    """A model on its way down; subclasses are the ladders."""

    def __init__(self, model: PreTrainedModel, options: Options) -> None:
        self.model = model
        self.options = options
        self.proof = _proof(model, options)
        self.proof.require_numbers()
        self.adapting = None if options.adapters is None else Adapting(options.adapters, model.device)
        leave_out(model, options.adapters, self.proof)
        self.reasons: list[str] = []  # of the levels that were left out
        self.latents = choose_latents(model, options)
        self._nearly = False  # one of them may have been left out for a matter of rounding
        layers = find_layers(model, options.max_total_tokens)
        self.probed, self.keeping = layers.attending, layers.keeping
        self.rebuilt: dict[nn.Module, StateModule] = {}  # what keeps states, but for its own code
        if layers.reason:
            self.reasons.append(layers.reason)
        if options.vision is not None:
            device = options.ops is not None
            options.vision.begin(layers, self.proof, rounds=self.rounds, device=device)

    @property
    def rounds(self) -> bool:
        """Return whether weights, or keys and values, are rounded, so that nearly right will do."""
        return False

    @property
    def packs_steps(self) -> bool:
        """Return whether all its layers can compute a step's sequences as one row of tokens."""
        return bool(self.probed or self.keeping)

    @property
    def eyes(self) -> Eyes | None:
        """Return what sees; None if nothing does."""
        return None if self.options.vision is None else self.options.vision.eyes

    def first(self, *ways: Callable[[], Served | None]) -> Served | None:
        """Return the model at the first level that holds, best first.

        Where one nearly does, it is seen how much the model's own code rounds away, and tried again.
        """
        for way in ways:
            known, self._nearly = len(self.reasons), False
            served = way()
            if served is None and self._nearly and self._allow_for_rounding():
                del self.reasons[known:]
                served = way()
            if served is not None:
                return served
        return None

    def _allow_for_rounding(self) -> bool:
        try:
            with eager_attention(self.model):
                more = self.proof.allow_for_rounding(self.model)
        except Exception as error:  # its own code runs, but not all of it may be given back
            if is_shortage(error):
                raise  # as in Proof.judge
            LOG.debug("It isn't known how a model rounds", exc_info=True)
            return False
        if more:
            LOG.info("Logits may be off by %.1e, as the model's own are by rounding", self.proof.tolerance)
        return more

    def serve(self, attempt: Attempt) -> Served | None:
        """Return the model at a level if it reproduces its logits there, else note why not."""
        verdict = self._check(attempt, packed_steps)
        others = (self._check(attempt, steps) for steps in attempt.also)
        failed = next((each for each in chain([verdict], others) if not each.holds), None)
        if failed is None:
            return self._served(attempt, verdict)
        self._nearly |= failed.nearly
        why = failed.complaint or f"it doesn't reproduce its logits: {failed.error:.1e} off"
        reason = f"level {attempt.level} can't be used in it ({why})"
        if reason not in self.reasons:  # it may be tried in two ways
            self.reasons.append(reason)
        return None

    def merge(self, make_runner: MakeRunner) -> Callable[[], None] | None:
        """Merge parallel linears and return what undoes it; None if there are none."""
        if not self.options.merge:
            self.reasons.append("merging is switched off")
            return None
        undo = self.quiet_merge(make_runner)
        if undo is None:
            self.reasons.append("it has no parallel linears")
        return undo

    def quiet_merge(self, make_runner: MakeRunner) -> Callable[[], None] | None:
        """Do the same, whatever the options say, without a reason if there are none."""
        runner = make_runner(PROOF_BLOCKS)
        try:
            merges = merge_linears(self.model, lambda: self.proof.run(runner))
        except Exception as error:  # the level's own check says what it was
            if is_shortage(error):
                raise  # as in Proof.judge
            return None

        def undo() -> None:
            for merge in merges:
                merge.undo()

        return undo if merges else None

    def sequential(self) -> Served:
        """Return the model at a level of one sequence at a time; raise ModelUnavailable if there is none.

        At the last one each token is what the model's own code makes of the whole text. Some models make
        other numbers of a longer text, so that they needn't be those of the proof; but numbers they must be.
        """
        attend_by(self.model, "eager")
        put_back(self.keeping)
        for level in (Level.SEQUENTIAL, Level.UNCACHED):
            served = self._sequential(level)
            if served.verdict.holds:
                break
            if level is Level.SEQUENTIAL:
                self.reasons.append("its cache can't be passed on either")
        if not math.isfinite(served.verdict.error):
            why = served.verdict.complaint or "its logits are NaN or infinite"
            raise ModelUnavailable(f"The model can't be served: {served.reason}; nor without a cache ({why})")
        self.adapt()
        return served

    def cached_parts(self) -> tuple[Part, ...]:
        """Have its own attention compute again; return what its layers keep of a token in a cache.

        Nothing if that can't be kept in blocks, so that it can't be served at the level `batched`.
        """
        attend_by(self.model, "eager")
        if self.keeping or changes_with_others(self.model, self.options.max_total_tokens):
            return ()
        most = getattr(self.model.config.get_text_config(), "keep_window_size", None)
        if most is not None and most < self.options.max_total_tokens:  # the proof is shorter
            self.reasons.append(f"which of more than {most} keys it keeps depends on the step's other tokens")
            return ()
        try:
            return find_parts(self.model)
        except torch.OutOfMemoryError:  # as in Proof.check
            raise
        except Exception as error:  # any model's code may fail in any way on what it wasn't written for
            self.reasons.append(f"its cache can't be paged ({told(error)})")
            return ()

    def serve_batched(
        self, parts: tuple[Part, ...], packed: tuple[Packed, ...] = (), *, rounded: bool = False
    ) -> Served | None:
        """Return the model at that level if it reproduces its logits there, else note why not."""
        dtype = self.options.dtype

        def make_runner(blocks: int) -> Runner[Tensor]:
            return BatchedRunner(self.model, parts, blocks, dtype, self.adapting)

        attempt = Attempt(
            level=Level.BATCHED,
            make_runner=make_runner,
            kv_dtype=dtype,
            kv_elements=sum(part.elements for part in parts),
            also=(padded_steps,),  # two rows of the others are: too few to be seen where much is rounded
            packed=packed,
            rounded=rounded,
        )
        return self.serve(attempt)

    def adapt(self, make: MakeLinear | None = None) -> None:
        """Have the model's own code, at the level that was found, add what adapters do.

        `make`: how low ranks are multiplied; by torch without it.
        """
        if self.adapting is not None:
            self.adapting.wrap(self.model, make or self._plain)

    def check_vision(self, served: Served, *, rounded: bool = False) -> None:
        """Have images refused if they can't be computed at the level that was found."""
        if self.options.vision is not None:
            self.options.vision.prove(served, self.proof, rounded=rounded)

    def states(self, adapting: Adapting | None = None) -> StateCache | None:
        """Return what holds the states of a new cache; None if no layer keeps any."""
        if not self.keeping:
            return None
        return StateCache(self.keeping, self.model.device, adapting, self.rebuilt)

    def _state_bytes(self) -> int:
        """Return what a state of all layers takes, in the form in which each is kept."""
        rebuilt = sum(part.nbytes for each in self.rebuilt.values() for part in each.states(1))
        return rebuilt + sum(each.nbytes for key, each in self.keeping.items() if key not in self.rebuilt)

    def rebuild(self, kernels: StateKernels, make_exact: MakeRunner, whose: str) -> None:
        """Have layers that keep a state computed by kernels, if they reproduce the model's logits so."""
        if not self.options.fuse:
            self.reasons.append(
                "fusing is switched off, so that layers that keep a state are their own code's"
            )
            return
        self.rebuilt = rebuild(self.keeping, kernels)
        if self.rebuilt and not self.holds(make_exact):
            self.reasons.append(f"{whose} doesn't reproduce its layers that keep a state")
            self.rebuilt = {}

    def holds(self, make_exact: MakeRunner) -> bool:
        """Return whether what computes exactly reproduces the logits; the level itself may nearly do so."""
        verdict = self.measure().check(lambda: make_exact(PROOF_BLOCKS), packed_steps)
        self._nearly |= verdict.nearly
        return verdict.holds

    def measure(self) -> Proof:
        """Return what says whether the model as it is now is computed exactly."""
        return self.proof

    def _plain(self, weight: Tensor) -> Multiply:
        return make_linear(weight.to(self.model.device, self.options.dtype), None)

    def _sequential(self, level: Level) -> Served:
        def make_runner(_: int) -> Runner[Tensor]:
            length = changing_length(self.model.config.get_text_config())
            cached = level is Level.SEQUENTIAL
            return SequentialRunner(self.model, cached=cached, changing_length=length, adapting=self.adapting)

        verdict = self.proof.check(lambda: make_runner(0), sequential_steps)
        attempt = Attempt(level=level, make_runner=make_runner, kv_dtype=self.options.dtype)
        return self._served(attempt, verdict, paged=False)

    def expand_latents(self) -> bool:
        """Have every head's keys and values kept; return whether there is any latent attention."""
        had, self.latents = self.latents, []
        if had:
            self.probed = expand_latents(self.model, had)
        return bool(had)

    def _check(self, attempt: Attempt, steps: Steps, *, rounded: bool | None = None) -> Verdict:
        nearly = attempt.rounded if rounded is None else rounded
        return self.proof.check(lambda: attempt.make_runner(PROOF_BLOCKS), steps, rounded=nearly)

    def _served(self, attempt: Attempt, verdict: Verdict, *, paged: bool = True) -> Served:
        steps: tuple[Steps, ...] = (alone_steps, odd_steps) if attempt.invariant else ()
        if steps and attempt.level is not Level.FUSED and is_small(self.model):
            # What torch computes of the last numbers of a row can have other bits than the same in the middle
            steps += (single_steps,)
        others = [self._check(attempt, each, rounded=True) for each in steps]
        shards = 1 if self.options.group is None else self.options.group.share.count
        if (elements := attempt.kv_elements) is None:
            all_keep = attempt.level is not Level.FUSED  # also what they borrow of another layer
            kept = (each.shape for each in self.probed.values() if all_keep or each.borrows is None)
            elements = sum(kept_by_all(each, shards) for each in kept if paged)
        rebuilt = {module for each in self.rebuilt for module in each.modules()}  # whose torch is idle
        heavy = attempt.level is not Level.FUSED and is_heavy(self.model, {*self.proof.idle, *rebuilt})
        # Their own code sums up a longer piece in another order than single tokens
        sums = any(layer.recurrent and module not in self.rebuilt for module, layer in self.keeping.items())
        return Served(
            level=attempt.level,
            reason="; ".join(self.reasons),
            verdict=replace(verdict, logits=None),  # they are big
            exact=bool(others) and not (heavy or sums) and all(same_bits(each, verdict) for each in others),
            vocabulary=self.proof.columns,
            kv_bytes=elements * attempt.kv_dtype.itemsize,
            state_bytes=self._state_bytes() if paged else 0,
            state_layers=len(self.keeping) if paged else 0,
            kv_dtype=attempt.kv_dtype,
            make_runner=attempt.make_runner,
            packed=attempt.packed,
            torch_heavy=heavy or sums,
            make_model=attempt.make_model,
        )


def _proof(model: PreTrainedModel, options: Options) -> Proof:
    """Return the model's own logits; raise ModelUnavailable if its code makes none of text alone."""
    try:
        return Proof(model, options.dtype, options.max_total_tokens)
    except Exception as error:  # it may ask for an image in any way
        if is_shortage(error):
            raise  # told elsewhere, with what is free
        raise ModelUnavailable(
            f"The model can't be served: its own code takes no text alone ({told(error)})"
        ) from error
