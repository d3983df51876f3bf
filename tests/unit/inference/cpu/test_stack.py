from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

from inference.cpu.packed import Packs  # noqa: E402
from inference.cpu.stack import FusedModel, fuse_model  # noqa: E402
from inference.engine.drafts import with_guesses  # noqa: E402
from inference.kernels.native import Library, WeightKind, open_library  # noqa: E402
from inference.kernels.native_model import Logits, NativeModel  # noqa: E402
from inference.kernels.native_screen import Screen  # noqa: E402
from inference.levels.proof import proof_prompts  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.models.layers import OtherShape  # noqa: E402
from inference.models.linears import native_pack  # noqa: E402
from inference.models.paged import use_paged_attention  # noqa: E402
from inference.sampling.rows import statistics  # noqa: E402
from inference.sequences.state import Chunk, Decodes, Pieces, Sequence, SlotTable, pack  # noqa: E402
from inference.types import CoreRequest, LogprobsMode, Sampling  # noqa: E402
from tests.unit.inference.toy_models import toy  # noqa: E402


@pytest.fixture(scope="module")
def library() -> Library:
    torch.set_num_threads(1)
    found = open_library(threads=1)
    if found is None:
        pytest.skip("the extension isn't built")
    return found


def fuse(
    model: PreTrainedModel,
    library: Library,
    kind: WeightKind | None = None,
    adapted: Collection[str] = (),
) -> FusedModel:
    exact = native_pack(library, None, narrow=True, round_inputs=False)
    packs = Packs(exact, None, exact)
    if kind is not None:
        packs = Packs(native_pack(library, kind, narrow=True, round_inputs=False), exact, exact)
    probed = use_paged_attention(model)
    try:
        return fuse_model(model, probed, library, packs, proof_prompts(model)[0], 256, adapted)
    finally:
        model.set_attn_implementation("eager")


def logits(model: PreTrainedModel) -> Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.arange(3, 40)[None], use_cache=False).logits[0]


def weights(model: PreTrainedModel) -> list[Tensor | None]:
    return [module.weight for module in model.modules() if isinstance(module, nn.Linear | nn.Embedding)]


def one_prompt(length: int, first: int = 3) -> Pieces:
    """Return a step that computes a prompt, every token of which gets logits."""
    request = CoreRequest(
        id="",
        prompt_ids=tuple(range(first, first + length)),
        max_new_tokens=1,
        sampling=Sampling(),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=0,
        prompt_logprobs=True,
    )
    table, sequence = SlotTable(1, 4), Sequence(request)
    table.enter(sequence)
    table.extend(sequence, [2, 0, 1])
    return pack(table, Decodes(), [Chunk(sequence, 0, length)])


@pytest.mark.parametrize("family", ["llama", "gemma2"])  # the logits of the latter are capped
def test_the_runner_knows_the_statistics_of_the_logits_it_returned_last(
    family: str, library: Library
) -> None:
    runner = fuse(toy(family), library).make_runner(4, torch.float32)
    first = runner.run(one_prompt(37))
    second = runner.run(one_prompt(20))
    for scores in (first, second, second * -1, second[5:6]):
        found, wanted = runner.statistics(scores), statistics(scores, library)
        assert wanted.tokens.tolist() == found.tokens.tolist()
        assert wanted.best.tolist() == found.best.tolist()
        assert wanted.totals.tolist() == found.totals.tolist()


def test_what_was_found_stays_when_the_next_step_runs(library: Library) -> None:
    runner = fuse(toy("llama"), library).make_runner(4, torch.float32)
    found = runner.statistics(runner.run(one_prompt(20)))
    before = [each.tolist() for each in (found.tokens, found.best, found.totals)]
    assert runner.statistics(runner.run(one_prompt(20, first=40))).tokens.tolist() != before[0]
    assert before == [each.tolist() for each in (found.tokens, found.best, found.totals)]


def test_token_by_token_and_with_guesses_the_logits_are_those_of_the_whole_text(library: Library) -> None:
    model = fuse(toy("llama"), library)
    whole = model.make_runner(4, torch.float32).run(one_prompt(24))
    pieces = one_prompt(24)
    table, sequence, decodes = pieces.table, pieces.prompts[0].sequence, Decodes()
    runner, length, found = model.make_runner(4, torch.float32), 8, []
    table.lengths[0] = length
    found.append(runner.run(pack(table, decodes, [Chunk(sequence, 0, length)])).clone())
    decodes.add(sequence)
    for guessed in (0, 0, 3, 0, 0, 1, 2, 0):
        length += 1
        table.lengths[0] = length
        guesses = {0: table.tokens[0, length : length + guessed].copy()} if guessed else {}
        step = pack(table, decodes)
        found.append(runner.run(with_guesses(step, guesses).pieces if guessed else step).clone())
        length += guessed
    assert length > 20
    assert torch.equal(torch.cat(found), whole[7:length])


@pytest.mark.parametrize("family", ["llama", "llama with tied weights", "gemma2"])
def test_with_a_screened_head_the_likeliest_tokens_are_the_same(
    family: str, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.models.ends.Screen.of", partial(Screen.of, small=True))
    fused = fuse(toy(family), library)
    whole = fused.make_runner(4, torch.float32)
    fused.screen_head()
    screened = fused.make_runner(4, torch.float32)
    wanted = whole.statistics(whole.run(one_prompt(20), tokens_only=True))
    found = screened.statistics(screened.run(one_prompt(20), tokens_only=True))
    assert (found.tokens.tolist(), found.best.tolist()) == (wanted.tokens.tolist(), wanted.best.tolist())
    untold = library.screens and family != "gemma2"  # its logits are capped: nothing of them is left out
    assert (found.totals.tolist() == found.best.tolist()) == untold
    asked = screened.statistics(screened.run(one_prompt(20)))
    assert asked.totals.tolist() == wanted.totals.tolist()


@pytest.mark.parametrize("trim", [True, False])
def test_the_last_layer_is_trimmed_if_that_was_not_switched_off(
    trim: bool, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    run = NativeModel.run

    def watched(self: NativeModel, *arguments: Any, **keywords: Any) -> Logits:
        told.append(self._ends.trims)  # as C reads it
        return run(self, *arguments, **keywords)

    monkeypatch.setattr(NativeModel, "run", watched)
    bring_up(toy("llama"), Options(library=library, max_total_tokens=256, trim=trim))
    assert set(told) == {int(trim)}


@pytest.mark.parametrize(
    "family", ["llama", "llama with tied weights", "llama with biases", "phi3", "gemma2"]
)
def test_undone_the_model_computes_the_same_bits_again(family: str, library: Library) -> None:
    model = toy(family)
    expected = logits(model)
    fuse(model, library).undo()
    assert torch.equal(logits(model), expected)


def test_linears_are_freed_as_they_are_packed(library: Library) -> None:
    model = toy("llama with tied weights")
    fused = fuse(model, library)
    assert weights(model) == [None] * (3 * 7 + 2)
    assert len(fused.packed) == 3 * 4 + 1


def test_separate_embedding_stays(library: Library) -> None:
    model = toy("llama")
    fuse(model, library)
    assert model.get_input_embeddings().weight.shape == (97, 64)


def test_rounded_head_leaves_the_exact_embedding(library: Library) -> None:
    model = toy("llama with tied weights")
    table = model.get_input_embeddings().weight.clone()
    fused = fuse(model, library, WeightKind.INT8)
    assert {packed.form for packed in fused.packed} == {"int8"}
    assert torch.equal(model.get_input_embeddings().weight, table)


def test_layer_of_another_shape_leaves_the_model_as_it_was(library: Library) -> None:
    model = toy("llama")
    model.model.layers[2].mlp.act_fn = nn.Tanh()
    expected = logits(model)
    with pytest.raises(OtherShape, match="the activation"):
        fuse(model, library)
    assert torch.equal(logits(model), expected)


def test_embedding_of_another_size_than_layers_is_refused(library: Library) -> None:
    with pytest.raises(OtherShape, match="its embedding has rows of 32 numbers, and its layers read 64"):
        fuse(toy("opt", word_embed_proj_dim=32), library)


def test_clipping_that_no_proof_comes_to_see_is_refused(library: Library) -> None:
    model = toy("mpt", attn_config={"alibi": True, "clip_qkv": 50.0})
    with pytest.raises(OtherShape, match="its queries, keys or values are clipped"):
        fuse(model, library)


@pytest.mark.parametrize("kind", [None, WeightKind.INT8])
def test_last_layer_that_computes_something_else_leaves_the_model_as_it_was(
    library: Library, kind: WeightKind | None
) -> None:
    model = toy("llama")
    last = model.model.layers[2]
    last.register_forward_hook(lambda _, given, result: result * 1.01)
    expected = logits(model)
    with pytest.raises(OtherShape, match="computes something else"):
        fuse(model, library, kind)
    assert torch.equal(logits(model), expected)


@pytest.mark.parametrize("kind", [None, WeightKind.INT8])
def test_layers_of_several_shapes_leave_the_model_as_it_was(
    library: Library, kind: WeightKind | None
) -> None:
    model = toy("llama")
    for norm in (model.model.layers[2].input_layernorm, model.model.layers[2].post_attention_layernorm):
        norm.variance_epsilon = 1e-3
    expected = logits(model)
    with pytest.raises(OtherShape, match="of several shapes"):
        fuse(model, library, kind)
    assert torch.equal(logits(model), expected)


def test_norms_of_all_heads_together_are_no_late_ones(library: Library) -> None:
    """These are of each head: no layer is tried so, and one that nothing reproduces is of another shape."""
    model = toy("olmo2")
    model.model.layers[0].register_forward_hook(lambda _, __, result: 2 * result)
    with pytest.raises(OtherShape, match="computes something else"):
        fuse(model, library)
