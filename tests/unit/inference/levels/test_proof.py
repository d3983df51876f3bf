from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch import dtype as Dtype  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

from inference.levels.proof import PROOF_BLOCKS, Proof  # noqa: E402
from inference.levels.proof_steps import alone_steps, odd_steps, packed_steps, sequential_steps  # noqa: E402
from inference.sequences.state import Chunk, Pieces, Sequence  # noqa: E402
from tests.unit.inference.toy_models import toy  # noqa: E402


class Whole:
    """Computes whole sequences by the model's own code, and changes what it gives by a rule of the test."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.blocks: set[int] = set()
        self.covered: dict[str, list[int]] = {}

    def change(self, logits: Tensor) -> Tensor:
        return logits

    @torch.inference_mode()
    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> Tensor:
        parts = []
        for chunk in pieces.chunks:
            ids = torch.tensor(chunk.sequence.request.prompt_ids)[None]
            parts.append(self.model(input_ids=ids).logits[0, chunk.start : chunk.stop])
            self.covered.setdefault(chunk.sequence.id, []).extend(range(chunk.start, chunk.stop))
            self.blocks.update(chunk.sequence.blocks)
        return self.change(torch.cat(parts))


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return toy("llama")


@pytest.mark.parametrize("steps", [packed_steps, alone_steps, odd_steps, sequential_steps])
def test_every_token_of_both_prompts_is_computed_once_within_the_blocks(
    model: PreTrainedModel, steps: Callable[[list[Sequence]], list[list[Chunk]]]
) -> None:
    proof, runner = Proof(model, torch.float32), Whole(model)
    verdict = proof.check(lambda: runner, steps)
    assert verdict.holds
    assert verdict.error < 1e-6
    assert [runner.covered[str(i)] for i in range(2)] == [list(range(len(p))) for p in proof.prompts]
    assert runner.blocks == set(range(PROOF_BLOCKS))


@pytest.mark.parametrize("positions", [1, 6, 22, 64])
@pytest.mark.parametrize("steps", [packed_steps, alone_steps, odd_steps, sequential_steps])
def test_prompts_stay_within_the_positions_that_there_are(
    model: PreTrainedModel, steps: Callable[[list[Sequence]], list[list[Chunk]]], positions: int
) -> None:
    proof, runner = Proof(model, torch.float32, positions), Whole(model)
    assert max(map(len, proof.prompts)) == min(max(positions, 5), 83)
    assert proof.check(lambda: runner, steps).holds
    assert [runner.covered[str(i)] for i in range(2)] == [list(range(len(p))) for p in proof.prompts]


def test_prompts_have_no_padding_where_a_models_own_code_gives_it_no_position() -> None:
    model = toy("roberta")
    padding = model.config.pad_token_id
    assert all(padding not in prompt for prompt in Proof(model, torch.float32).prompts)
    last = toy("roberta", pad_token_id=model.config.vocab_size - 1)
    assert all(prompt.max() < last.config.pad_token_id for prompt in Proof(last, torch.float32).prompts)
    assert any(padding in prompt for prompt in Proof(toy("bert"), torch.float32).prompts)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.5])
def test_logits_that_are_no_numbers_are_told(value: float) -> None:
    model = toy("llama")
    model.lm_head.weight[5, 5] = value
    assert Proof(model, torch.float32).finite is (value == 0.5)


HIDDEN = slice(90, None)  # the tokens that a toy's own code hides


def hiding(value: float, tokens: slice = HIDDEN) -> PreTrainedModel:
    """Return a toy whose own code hides tokens, as Chameleon's does those of images."""

    def hide(_: object, __: object, output: Any) -> None:
        output.logits[..., tokens] = value

    model = toy("llama")
    model.register_forward_hook(hide)
    return model


@pytest.mark.parametrize("value", [-torch.inf, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hidden_tokens_hide_no_errors(value: float, dtype: Dtype) -> None:
    class Wrong(Whole):
        def change(self, logits: Tensor) -> Tensor:
            wrong = torch.randn_like(logits) * 10
            wrong[:, HIDDEN] = value
            return wrong

    class Shown(Whole):
        def change(self, logits: Tensor) -> Tensor:
            return logits.clamp(min=-1)

    class Others(Whole):
        def change(self, logits: Tensor) -> Tensor:
            changed = logits.clone()
            changed[:, 3] = value
            return changed

    model = hiding(value)
    proof = Proof(model, dtype)
    assert proof.finite
    for rounded in (False, True):
        verdict = proof.check(lambda: Whole(model), packed_steps, rounded=rounded)
        assert (verdict.holds, verdict.error < 1e-6) == (True, True)
        for other in (Wrong, Shown, Others):
            assert not proof.check(lambda: other(model), packed_steps, rounded=rounded).holds  # noqa: B023
    said = proof.check(lambda: Others(model), packed_steps)
    assert said.complaint == "it hides other tokens than the model's own code"


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_hidden_tokens_must_not_turn_into_what_is_no_number(value: float) -> None:
    class Nothing(Whole):
        def change(self, logits: Tensor) -> Tensor:
            changed = logits.clone()
            changed[:, HIDDEN] = value
            return changed

    for hidden in (-torch.inf, torch.finfo(torch.float32).min):
        model = hiding(hidden)
        verdict = Proof(model, torch.float32).check(lambda: Nothing(model), packed_steps)  # noqa: B023
        assert (verdict.holds, math.isfinite(verdict.error)) == (False, False)


def test_float16_hides_by_its_own_least_number() -> None:
    class Wrong(Whole):
        def change(self, logits: Tensor) -> Tensor:
            wrong = torch.randn_like(logits) * 10
            wrong[:, HIDDEN] = torch.finfo(torch.float16).min
            return wrong

    model = hiding(torch.finfo(torch.float16).min)
    proof = Proof(model, torch.float16)
    assert proof.check(lambda: Whole(model), packed_steps).holds
    assert not proof.check(lambda: Wrong(model), packed_steps, rounded=True).holds


def test_a_model_that_hides_all_tokens_says_nothing() -> None:
    assert not Proof(hiding(-torch.inf, slice(None)), torch.float32).finite


def test_logits_of_other_positions_than_the_prompts_are_refused() -> None:
    def of_a_canvas(_: object, __: object, output: Any) -> None:
        output.logits = output.logits[:, :16]

    model = toy("llama")
    model.register_forward_hook(of_a_canvas)
    with pytest.raises(ValueError, match=r"its logits of 83 tokens have the shape \(16, 97\)"):
        Proof(model, torch.float32)


def test_parts_that_text_does_not_come_through_are_idle() -> None:
    model = toy("llama")
    parts = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 4)), torch.nn.ModuleList([torch.nn.Linear(2, 2)])
    model.tower, model.towers = parts[0], torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(2, 2))])
    model.by_weight, model.by_weights = torch.nn.Linear(2, 2), parts[1]  # others may use these weights
    proof = Proof(model, torch.float32)
    assert set(proof.idle) == {*model.tower.modules(), *model.towers[0].modules()}
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_wrong_logits_at_one_place_are_seen(model: PreTrainedModel) -> None:
    class Wrong(Whole):
        def change(self, logits: Tensor) -> Tensor:
            logits = logits.clone()
            logits[-1, 3] += 1e-2 * logits.abs().max()
            return logits

    verdict = Proof(model, torch.float32).check(lambda: Wrong(model), packed_steps)
    assert not verdict.holds
    assert not verdict.complaint


@pytest.mark.parametrize(("noise", "holds"), [(0.05, True), (0.7, False)])
def test_rounded_logits_may_be_off_a_little(model: PreTrainedModel, noise: float, holds: bool) -> None:
    class Rounded(Whole):
        def change(self, logits: Tensor) -> Tensor:
            return logits + noise * logits.std() * torch.randn_like(logits)

    proof = Proof(model, torch.float32)
    assert not proof.check(lambda: Rounded(model), packed_steps).holds
    assert proof.check(lambda: Rounded(model), packed_steps, rounded=True).holds is holds


def test_not_a_number_does_not_hold(model: PreTrainedModel) -> None:
    class Nothing(Whole):
        def change(self, logits: Tensor) -> Tensor:
            return logits * torch.nan

    for rounded in (False, True):
        assert (
            not Proof(model, torch.float32).check(lambda: Nothing(model), packed_steps, rounded=rounded).holds
        )


def test_what_a_runner_raises_is_said(model: PreTrainedModel) -> None:
    class Broken(Whole):
        def change(self, logits: Tensor) -> Tensor:
            raise IndexError("too far")

    verdict = Proof(model, torch.float32).check(lambda: Broken(model), packed_steps)
    assert (verdict.holds, verdict.complaint) == (False, "IndexError: too far")


def test_a_gpus_want_of_memory_is_no_way_that_fails(model: PreTrainedModel) -> None:
    class Full(Whole):
        def change(self, logits: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        Proof(model, torch.float32).check(lambda: Full(model), packed_steps)


class Noisy(Whole):
    """Adds noise of a size, as a part of each position's logits, to some of the positions."""

    size = 0.0
    share = 1.0

    def change(self, logits: Tensor) -> Tensor:
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
        noisy = (torch.arange(len(logits)) < self.share * len(logits))[:, None]
        return logits + noisy * noise * self.size * logits.norm(dim=-1, keepdim=True) / logits.shape[1] ** 0.5


@pytest.mark.parametrize(
    ("size", "share", "holds"),
    [(0.02, 1.0, True), (0.1, 1.0, False), (0.2, 0.3, True), (0.6, 0.3, False)],
    ids=["rounding", "too much", "some tokens went to other experts", "some tokens are wrong"],
)
def test_in_16_bits_rounding_is_told_from_errors(
    model: PreTrainedModel, size: float, share: float, holds: bool
) -> None:
    runner = Noisy(model)
    runner.size, runner.share = size, share
    assert Proof(model, torch.bfloat16).check(lambda: runner, alone_steps).holds is holds
    assert not Proof(model, torch.float32).check(lambda: runner, alone_steps).holds


def test_in_16_bits_other_likeliest_tokens_are_seen(model: PreTrainedModel) -> None:
    class Other(Whole):
        def change(self, logits: Tensor) -> Tensor:
            best, least = logits.argmax(-1, keepdim=True), logits.argmin(-1, keepdim=True)
            swapped = logits.scatter(-1, best, logits.gather(-1, best) - 0.3 * logits.std(-1, keepdim=True))
            return swapped.scatter(-1, least, logits.amax(-1, keepdim=True))

    verdict = Proof(model, torch.bfloat16).check(lambda: Other(model), alone_steps)
    assert not verdict.holds


@pytest.mark.parametrize(
    ("own", "size", "holds"), [(0.03, 0.08, True), (0.03, 0.14, False), (0.2, 0.2, False)]
)
def test_in_16_bits_it_may_be_off_by_what_the_models_own_code_rounds_away(
    own: float, size: float, holds: bool
) -> None:
    model = toy("llama")
    rounding = Noisy(model)
    rounding.size = own

    def round_single_tokens(_: object, __: object, logits: Tensor) -> Tensor:
        return rounding.change(logits[0])[None] if logits.shape[1] == 1 else logits

    model.lm_head.register_forward_hook(round_single_tokens)
    runner = Noisy(model)
    runner.size = size
    assert Proof(model, torch.bfloat16).check(lambda: runner, alone_steps).holds is holds


def test_model_whose_own_code_takes_no_cache_may_be_off_as_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = toy("llama")
    forward = model.forward

    def without_cache(input_ids: Tensor, **given: Any) -> Any:
        if given.get("use_cache"):
            raise ValueError("it has a cache of its own")
        return forward(input_ids=input_ids, **given)

    monkeypatch.setattr(model, "forward", without_cache)
    runner = Noisy(model)
    runner.size = 0.04
    assert Proof(model, torch.bfloat16).check(lambda: runner, alone_steps).holds
    runner.size = 0.06
    assert not Proof(model, torch.bfloat16).check(lambda: runner, alone_steps).holds


def test_no_more_is_allowed_where_rounding_changes_little(model: PreTrainedModel) -> None:
    proof = Proof(model, torch.float32)
    allowed = proof.tolerance
    assert not proof.allow_for_rounding(model)
    assert proof.tolerance == allowed


@pytest.mark.parametrize("off", [2e-4, 5e-3, 0.1])
def test_what_is_a_little_off_is_said_to_be_so(model: PreTrainedModel, off: float) -> None:
    class Off(Whole):
        def change(self, logits: Tensor) -> Tensor:
            return logits * (1 + off)

    proof = Proof(model, torch.float32)
    verdict = proof.check(lambda: Off(model), alone_steps)
    assert (verdict.holds, verdict.nearly) == (False, off < 0.01)
    assert not proof.check(lambda: Off(model), alone_steps, rounded=True).nearly
