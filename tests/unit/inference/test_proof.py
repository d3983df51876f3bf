from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

from inference.proof import PROOF_BLOCKS, Proof, alone_steps, odd_steps, packed_steps, sequential_steps  # noqa: E402
from inference.state import Chunk, Pieces, Sequence  # noqa: E402
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
    def run(self, pieces: Pieces) -> Tensor:
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
