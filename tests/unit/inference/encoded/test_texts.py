"""Texts behind an encoder, in any steps: alone, in batches that others join and leave, and computed again."""

from __future__ import annotations

from functools import cache
from unittest.mock import patch
from weakref import ref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

from codegen.toys import prompts, toy_model  # noqa: E402
from inference.encoded.batch import Batch, Rows  # noqa: E402
from inference.encoded.texts import EncodedRunner  # noqa: E402
from inference.kv_cache.blocks import blocks_for  # noqa: E402
from inference.levels.proof import scored_request  # noqa: E402
from inference.sequences.state import Chunk, Decodes, Sequence, SlotTable, pack  # noqa: E402

START = (1,)
PROMPTS = prompts(9, 4, 1, 17)
TEXTS = [[int(token) for token in text] for text in prompts(8, 7, 6, 5)]

# Of each text whether it goes on in a step; which have begun goes by the first time that one does
Step = frozenset[int]
steps = st.lists(st.frozensets(st.integers(0, len(PROMPTS) - 1), min_size=1), min_size=1, max_size=12)


# Distances alone count; places do, of a table that is learned, or made, or rotate keys
FAMILIES = ["umt5", "bart+encoder", "pegasus+encoder", "m2m_100", "t5gemma"]


@cache
def model(family: str) -> PreTrainedModel:
    torch.set_num_threads(1)
    return toy_model(family)


@cache
def own_logits(family: str, index: int) -> Tensor:
    """Return what the model's own code says before each token of a text, and behind it."""
    with torch.inference_mode():
        read, written = torch.tensor([PROMPTS[index]]), torch.tensor([[*START, *TEXTS[index]]])
        logits: Tensor = model(family)(input_ids=read, decoder_input_ids=written, use_cache=False).logits[0]
    return logits


class Run:
    """Texts on their way through a runner."""

    def __init__(self, family: str = FAMILIES[0], *, together: bool, cached: bool = True) -> None:
        self.family = family
        self.runner = EncodedRunner(model(family), START, cached=cached, together=together)
        self.table = SlotTable(slots=len(PROMPTS), pages=2)
        self.sequences = [
            Sequence(scored_request(str(at), tuple(prompt), scored=False))
            for at, prompt in enumerate(PROMPTS)
        ]
        self.begun: set[int] = set()

    def step(self, going: Step) -> list[tuple[int, Tensor]]:
        """Return which row of its text's logits each of those that go on gets, and what that is."""
        chosen = [at for at in sorted(going) if self._has_more(at)]
        if not chosen:
            return []
        rows = self.runner.run(pack(self.table, Decodes(), [self._chunk(at) for at in chosen]))
        return list(zip(chosen, rows, strict=True))

    def check(self, going: Step) -> None:
        """Have some go on, and hold what they get against the model's own logits."""
        for at, row in self.step(going):
            expected = own_logits(self.family, at)[self.sequences[at].generated]
            torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))

    def preempt(self, at: int) -> None:
        """Take a text's slot away, and give it one again: all of it is to be computed anew."""
        if at in self.begun:
            self.table.leave(self.sequences[at])
            self._enter(self.sequences[at])

    def _has_more(self, at: int) -> bool:
        return at not in self.begun or self.sequences[at].generated < len(TEXTS[at])

    def _enter(self, sequence: Sequence) -> None:
        self.table.enter(sequence)
        self.table.extend(sequence, [*range(blocks_for(sequence.length + 8))])

    def _chunk(self, at: int) -> Chunk:
        sequence = self.sequences[at]
        if at not in self.begun:
            self.begun.add(at)
            self._enter(sequence)
            return Chunk(sequence, 0, sequence.length)
        known = sequence.cache is not None
        token = TEXTS[at][sequence.generated]
        self.table.append(np.array([sequence.slot]), np.array([token]))
        return Chunk(sequence, sequence.length - 1 if known else 0, sequence.length)


@pytest.mark.parametrize("short", [64, 1], ids=["of all lengths", "of like lengths"])
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15)
@given(steps)
def test_any_texts_may_go_on_together(family: str, short: int, several: list[Step]) -> None:
    with patch("inference.encoded.texts._SHORT", short):
        run = Run(family, together=True)
        for going in several:
            run.check(going)


def test_texts_go_on_beyond_the_window_of_layers_that_forget_and_others_with_them() -> None:
    run = Run("t5gemma", together=True)
    assert model("t5gemma").config.decoder.sliding_window < len(START) + min(map(len, TEXTS[:2]))
    for going in [{0}, *[{0, 1}] * 6, *[{0, 1, 2, 3}] * 4]:
        run.check(frozenset(going))


def test_batch_is_put_together_when_others_come_or_go_and_held_by_its_texts_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[ref[Batch]] = []
    blocks_of: list[list[int]] = []  # the texts of each

    def make(blocks: list[Rows]) -> Batch:
        made.append(ref(batch := Batch(blocks)))
        blocks_of.append([len(block.prompts) for block in blocks])
        return batch

    monkeypatch.setattr("inference.encoded.texts.Batch", make)
    run = Run(together=True)
    for going in (3, 3, 3, 4, 4, 4):
        run.check(frozenset(range(going)))
    assert blocks_of == [[1, 1, 1], [3, 1]]  # those of a batch are taken over as one
    for sequence in run.sequences:
        run.table.leave(sequence)
    assert [each() for each in made] == [None, None]


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many texts each batch has that is made."""
    found: list[int] = []

    def make(blocks: list[Rows]) -> Batch:
        batch = Batch(blocks)
        found.append(batch.rows)
        return batch

    monkeypatch.setattr("inference.encoded.texts.Batch", make)
    return found


def test_long_prompt_is_no_padding_of_short_ones(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.encoded.texts._SHORT", 8)
    run = Run(together=True)
    for _ in range(3):
        run.check(frozenset(range(len(PROMPTS))))
    assert sizes == [3]  # of 9, 4 and 1 tokens; that of 17 is alone


@settings(max_examples=15)
@given(steps, st.lists(st.integers(0, len(PROMPTS) - 1), min_size=12, max_size=12))
def test_texts_that_lost_their_place_are_computed_again(several: list[Step], lost: list[int]) -> None:
    run = Run(together=True)
    for going, at in zip(several, lost, strict=False):
        run.check(going)
        run.preempt(at)


@pytest.mark.parametrize("cached", [True, False])
def test_texts_may_go_on_one_at_a_time(cached: bool) -> None:
    run = Run(together=False, cached=cached)
    for _ in range(6):
        run.check(frozenset(range(len(PROMPTS))))


def test_step_that_fails_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    everyone = frozenset(range(len(PROMPTS)))
    run = Run(together=True)
    for _ in range(2):
        run.check(everyone)
    chunks = [run._chunk(at) for at in sorted(everyone)]
    layer = model(run.family).get_decoder().block[-1]  # the layers before it have the token then
    with monkeypatch.context() as patch:
        patch.setattr(layer, "forward", raise_shortage)
        with pytest.raises(RuntimeError, match="no memory"):
            run.runner.run(pack(run.table, Decodes(), chunks))
    rows = run.runner.run(pack(run.table, Decodes(), chunks))
    for at, row in zip(sorted(everyone), rows, strict=True):
        torch.testing.assert_close(row, own_logits(run.family, at)[2], rtol=1e-4, atol=1e-3)


def raise_shortage(*_: object, **__: object) -> None:
    raise RuntimeError("no memory")


def test_text_that_has_left_a_window_goes_on_alone(sizes: list[int]) -> None:
    """What its layers have dropped is no padding; those that are within the window go on together."""
    run = Run("t5gemma", together=True)
    assert run.runner._model.config.decoder.sliding_window == 6
    for _ in range(7):
        run.check(frozenset({0}))
    for _ in range(3):
        run.check(frozenset({0, 1, 2}))
    assert sizes == [2]


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_computed_again_in_pieces_and_keeps_no_more_logits_than_it_needs(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.encoded.texts._PIECE", 3)
    run = Run(family, together=False)
    for _ in range(6):
        run.check(frozenset({0}))
    run.preempt(0)
    run.check(frozenset({0}))
    kept = run.sequences[0].cache.logits  # type: ignore[attr-defined]
    assert len(kept) == 1
    assert kept.untyped_storage().nbytes() == kept.nbytes
