"""The measure is each model's own eager forward, computed here once more by transformers alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch import dtype as Dtype  # noqa: E402

from codegen.toys import toy_model  # noqa: E402
from inference.errors import ModelUnavailable  # noqa: E402
from inference.kernels.arena import Arena  # noqa: E402
from inference.kernels.native import Library, open_library  # noqa: E402
from inference.kernels.native_attention import NativeCacheLayer  # noqa: E402
from inference.levels.served import Level  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.models.linears import ReorderedLinear  # noqa: E402
from tests.unit.inference.level_logits import PROMPT, own_logits, served_logits  # noqa: E402
from tests.unit.inference.toy_models import FAMILIES, toy  # noqa: E402

FUSED = {
    "llama", "llama with tied weights", "llama with biases", "mistral", "qwen3", "gemma2", "gemma3_text",
    "phi3", "olmo2", "granite", "smollm3", "glm", "glm4", "exaone4", "mixtral",
    "gpt2", "gpt_neox", "cohere", "bloom", "falcon", "falcon with one head of keys", "mpt", "starcoder2",
    "opt", "gptj", "codegen", "cohere2",
    "gpt_bigcode", "persimmon", "stablelm", "nemotron", "olmo", "cohere2_moe",
}  # fmt: skip
OTHERS = {"xglm": Level.BATCHED, "roformer": Level.SEQUENTIAL}


@pytest.fixture(scope="module")
def library() -> Library:
    torch.set_num_threads(1)
    found = open_library(threads=1)
    if found is None:
        pytest.skip("the extension isn't built")
    return found


def assert_near(found: Tensor, expected: Tensor) -> None:
    assert float((found - expected).abs().max() / expected.abs().max()) < 2e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_best_level_gives_the_models_own_logits_far_beyond_what_the_proof_looks_at(
    family: str, library: Library
) -> None:
    model = toy(family)
    expected = own_logits(model, PROMPT)
    served = bring_up(model, Options(library=library, max_total_tokens=256))
    assert served.level is (Level.FUSED if family in FUSED else OTHERS.get(family, Level.NATIVE))
    assert (served.reason == "") is (family in FUSED)
    if served.level.chunked:
        assert_near(served_logits(served, 21), expected)


@pytest.mark.parametrize(("most", "level"), [(8, Level.FUSED), (256, Level.BATCHED)])
def test_a_window_that_no_layer_asks_for_is_left_to_the_models_own_mask(
    most: int, level: Level, library: Library
) -> None:
    """The proof's prompts may be shorter than it, and so wouldn't show that it is missing."""
    model = toy_model("phimoe")
    model.config.sliding_window = 8
    expected = own_logits(model, tuple(each % 97 for each in PROMPT))
    served = bring_up(model, Options(library=library, max_total_tokens=most))
    assert served.level is level
    assert ("no layer asks for its sliding window of 8 tokens" in served.reason) is (level is Level.BATCHED)
    size = len(PROMPT) if level is Level.BATCHED else 8
    found = served_logits(served, size)[:size]
    assert_near(found, expected[:size])


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "granite", "mixtral", "gpt2"])
@pytest.mark.parametrize(
    "options",
    [{"fuse": False}, {"fuse": False, "merge": False}, {"narrow": False}],
    ids=str,
)
def test_switched_off_parts_change_the_level_and_not_the_logits(
    family: str, options: dict[str, Any], library: Library
) -> None:
    model = toy(family)
    expected = own_logits(model, PROMPT)
    served = bring_up(model, Options(library=library, max_total_tokens=256, **options))
    assert served.level is (Level.NATIVE if "fuse" in options else Level.FUSED)
    assert_near(served_logits(served, 16), expected)


@pytest.mark.parametrize("family", ["llama", "gemma2", "mixtral", "gpt2"])
def test_without_the_extension_torch_serves(family: str) -> None:
    model = toy(family)
    expected = own_logits(model, PROMPT)
    served = bring_up(model, Options(library=None, without="it isn't there", max_total_tokens=256))
    assert served.level is (Level.PAGED if family == "gpt2" else Level.PAGED_MERGED)
    assert served.reason.startswith("it isn't there")
    assert_near(served_logits(served, 16), expected)


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounded_numbers_are_kept_in_16_bits(library: Library, fuse: bool, dtype: Dtype) -> None:
    model = toy("llama").to(dtype).float()
    expected = own_logits(model, PROMPT)
    served = bring_up(model, Options(library=library, fuse=fuse, max_total_tokens=256))
    assert served.weights_dtype == str(dtype)
    assert_near(served_logits(served, 16), expected)


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("round_inputs", [True, False])
def test_compressed_weights_change_no_bit(library: Library, fuse: bool, round_inputs: bool) -> None:
    found = {}
    for compress in (True, False):
        model = toy("llama").bfloat16().float()
        options = Options(
            library=library, compress=compress, fuse=fuse, round_inputs=round_inputs, max_total_tokens=256
        )
        served = bring_up(model, options)
        assert ("in 12 bits" in served.weights) == (compress and library.compresses)
        assert served.weights_dtype == "torch.bfloat16"
        found[compress] = served_logits(served, 16)
    assert torch.equal(found[True], found[False])


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "olmo2", "mixtral"])
def test_bits_are_the_same_however_a_prompt_is_cut(family: str, library: Library) -> None:
    served = bring_up(toy(family), Options(library=library, max_total_tokens=256))
    whole = served_logits(served, len(PROMPT))
    pieces = [served_logits(served, size) for size in (1, 7, 16, 50)]
    same = all(torch.equal(each, whole) for each in pieces)
    if served.level is Level.FUSED:
        assert same
    assert same or not served.exact


@pytest.mark.parametrize("fuse", [True, False])
def test_int8_is_near_and_says_so(library: Library, fuse: bool) -> None:
    model = toy("llama")
    expected = own_logits(model, PROMPT)
    served = bring_up(model, Options(library=library, quantize=True, fuse=fuse, max_total_tokens=256))
    assert served.level is (Level.FUSED if fuse else Level.NATIVE)
    assert served.weights_dtype == "torch.int8"
    found = served_logits(served, 16)
    assert 1e-4 < float((found - expected).norm() / expected.norm()) < 0.1
    assert f"{served.verdict.error:.1e} off" in str(served)


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("quantize", [True, False])
def test_cache_in_bfloat16_is_near_and_gives_the_same_bits_however_a_prompt_is_cut(
    library: Library, fuse: bool, quantize: bool
) -> None:
    model = toy("llama")
    expected = own_logits(model, PROMPT)
    options = Options(library=library, quantize=quantize, fuse=fuse, max_total_tokens=256)
    wide = bring_up(toy("llama"), options)
    served = bring_up(model, replace(options, kv_dtype=torch.bfloat16, kv_dtype_asked=True))
    assert served.level is wide.level is (Level.FUSED if fuse else Level.NATIVE)
    assert (served.kv_dtype, 2 * served.kv_bytes) == (torch.bfloat16, wide.kv_bytes)
    assert served.exact is wide.exact
    assert "KV cache in bfloat16" in str(served)
    whole, *pieces = (served_logits(served, size) for size in (len(PROMPT), 1, 7, 50))
    if fuse:
        assert served.exact
        assert all(torch.equal(each, whole) for each in pieces)
    changed = float((whole - served_logits(wide, len(PROMPT))).norm() / expected.norm())
    assert 1e-5 < changed < (0.1 if quantize else 0.01)  # 8 bits make more of a small change


@pytest.mark.parametrize("fuse", [True, False])
def test_wrong_layer_does_not_pass_for_the_rounding_of_a_cache(
    library: Library, fuse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = NativeCacheLayer.attend

    def scaled(*given: Any) -> Tensor:
        return attend(*given) * 1.01

    monkeypatch.setattr(NativeCacheLayer, "attend", scaled)
    options = Options(library=library, fuse=fuse, kv_dtype=torch.bfloat16, max_total_tokens=256)
    served = bring_up(toy("llama"), options)
    assert served.level is (Level.FUSED if fuse else Level.PAGED_MERGED)  # fused layers don't call it
    assert (served.kv_dtype is torch.bfloat16) is fuse


def test_cache_type_that_a_model_cannot_have_is_refused(library: Library) -> None:
    options = Options(library=library, kv_dtype=torch.bfloat16)
    assert bring_up(toy("xglm"), options).kv_dtype is torch.float32
    with pytest.raises(ModelUnavailable, match="its cache is float32: start without --kv-cache-dtype"):
        bring_up(toy("xglm"), replace(options, kv_dtype_asked=True))


def test_int8_of_a_model_that_the_kernels_cannot_serve_is_refused(library: Library) -> None:
    with pytest.raises(ModelUnavailable, match="start without --quantize"):
        bring_up(toy("roformer"), Options(library=library, quantize=True))


def test_int8_of_a_model_that_attends_by_itself_is_that_of_its_linears(library: Library) -> None:
    model = toy("xglm")
    expected = own_logits(model, PROMPT)
    served = bring_up(model, Options(library=library, quantize=True, max_total_tokens=256))
    assert (served.level, served.weights_dtype) == (Level.BATCHED, "torch.int8")
    found = served_logits(served, 16)
    assert 1e-6 < float((found - expected).norm() / expected.norm()) < 0.1


def test_model_that_chooses_keys_by_how_many_there_are_is_not_batched_beyond_that(library: Library) -> None:
    served = [
        bring_up(toy("doge", keep_window_size=60), Options(library=library, max_total_tokens=most))
        for most in (60, 61)
    ]
    assert [each.level is Level.BATCHED for each in served] == [True, False]
    assert "which of more than 60 keys it keeps depends on" in served[1].reason


def test_level_that_does_not_reproduce_is_undone(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy("llama")
    expected = own_logits(model, PROMPT)
    monkeypatch.setattr("inference.cpu.rebuilt._NEAR", 10.0)  # takes the first variant that is tried,
    monkeypatch.setattr(
        "inference.models.anatomy.ROTATIONS", ("neighbours", "half", "none")
    )  # which is wrong
    served = bring_up(model, Options(library=library, max_total_tokens=256))
    assert served.level is Level.NATIVE
    assert "level fused can't be used" in served.reason
    assert_near(served_logits(served, 16), expected)


def test_int8_is_served_where_the_level_that_was_tried_first_does_not_reproduce(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(library=library, quantize=True, max_total_tokens=256)
    expected = served_logits(bring_up(toy("llama"), replace(options, fuse=False)), 16)
    monkeypatch.setattr("inference.cpu.rebuilt._NEAR", 10.0)  # as above
    monkeypatch.setattr("inference.models.anatomy.ROTATIONS", ("none",))
    served = bring_up(toy("llama"), options)
    assert (served.level, served.weights_dtype) == (Level.NATIVE, "torch.int8")
    assert_near(served_logits(served, 16), expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("options", [{}, {"quantize": True}], ids=str)
def test_model_whose_logits_are_no_numbers_is_refused(
    library: Library, value: float, options: dict[str, Any]
) -> None:
    model = toy("llama")
    model.model.layers[1].mlp.down_proj.weight[0, 0] = value
    with pytest.raises(ModelUnavailable, match=r"logits are NaN or infinite.*--dtype float16"):
        bring_up(model, Options(library=library, max_total_tokens=256, **options))


def test_model_that_no_level_makes_numbers_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.cpu.runner.Head.logits", lambda self, logits, rows: logits[0] * torch.nan)
    with pytest.raises(ModelUnavailable, match="passed on either; nor without a cache"):
        bring_up(toy("roformer"), Options(library=None, max_total_tokens=256))


def test_rotation_that_depends_on_what_is_beside_it_is_not_served_in_batches(library: Library) -> None:
    model = toy("llama")
    own = model.model.rotary_emb.forward

    def far(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        return own(x, position_ids * (2 if position_ids.max() >= 200 else 1))

    model.model.rotary_emb.forward = far
    served = bring_up(model, Options(library=library, max_total_tokens=256))
    assert served.level is Level.SEQUENTIAL
    assert served.reason == "its rotary embedding depends on more than the position"
    assert bring_up(model, Options(library=library, max_total_tokens=200)).level is Level.FUSED


def test_what_fails_while_layers_are_fused_leaves_the_next_level(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = toy("llama")
    expected = own_logits(model, PROMPT)
    monkeypatch.setattr("inference.loading.level.fuse_model", lambda *_: [][0])
    served = bring_up(model, Options(library=library, max_total_tokens=256))
    assert served.level is Level.NATIVE
    assert served.reason == "its layers can't be fused: IndexError: list index out of range"
    assert_near(served_logits(served, 16), expected)


def test_one_sequence_at_a_time_is_said_so() -> None:
    served = bring_up(toy("roformer"), Options(library=None, max_total_tokens=256))
    assert "(one sequence at a time, its prompt whole, no prefix cache; " in str(served)


def test_computed_masks_have_no_paged_form() -> None:
    model = toy("llama")
    attention = model.model.layers[0].self_attn
    own = attention.forward
    attention.forward = lambda *given, **named: own(*given, **{**named, "attention_mask": torch.zeros(1)})
    served = bring_up(model, Options(library=None, max_total_tokens=256))
    assert not served.level.chunked
    assert "masks attention by what it computes" in served.reason


def test_layer_that_computes_otherwise_far_behind_is_not_fused(library: Library) -> None:
    model = toy("llama")
    attention = model.model.layers[1].self_attn
    own = attention.forward

    def scaled(hidden_states: Tensor, position_ids: Tensor, **named: object) -> object:
        scales = torch.where(position_ids >= 200, 1.5, 1.0)[..., None]
        return own(hidden_states=hidden_states * scales, position_ids=position_ids, **named)

    attention.forward = scaled
    served = bring_up(model, Options(library=library, max_total_tokens=256))
    assert served.level is Level.NATIVE
    assert "computes something else" in served.reason


class CountedArena(Arena):
    """An arena that knows how many pieces it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces = 0

    def take(self, size: int) -> Tensor:
        self.pieces += 1
        return super().take(size)


def test_nothing_that_a_layer_was_only_tried_with_lies_beside_what_stays(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = CountedArena()
    monkeypatch.setattr(library, "arena", arena)
    served = bring_up(toy("llama"), Options(library=library, quantize=True, max_total_tokens=256))
    assert served.level is Level.FUSED
    assert arena.pieces == len(served.packed)  # a map goes back with the last of its pieces


def test_where_reordered_linears_do_not_reproduce_plain_ones_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy("llama")
    expected = own_logits(model, PROMPT)
    monkeypatch.setattr(ReorderedLinear, "forward", lambda self, given: self.unpack()(given) * 1.01)
    served = bring_up(model, Options(library=None, merge=False, max_total_tokens=256))
    assert served.level is Level.PAGED
    assert served.packed == ()
    assert_near(served_logits(served, 16), expected)
