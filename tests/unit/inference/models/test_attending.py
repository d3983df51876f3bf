"""Models that attend in code of their own: what stands for it computes the same, in packed steps."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers import AutoModelForCausalLM, PreTrainedModel  # noqa: E402

from codegen.toys import toy_config, toy_model  # noqa: E402
from inference.kernels.native import open_library  # noqa: E402
from inference.levels.packable import find_layers  # noqa: E402
from inference.levels.served import Level, Served  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.models.attending import ATTENTION, attend_by, attending_by, stood_for  # noqa: E402
from inference.models.trace import eager_attention  # noqa: E402
from inference.models.weights import make_plain  # noqa: E402
from tests.unit.inference.level_logits import own_logits  # noqa: E402
from tests.unit.inference.state_steps import PAGES, TEXTS, Step, computed, schedules  # noqa: E402

FALCONS = {
    "falcon": {},  # one key for all heads, as in 7B
    "falcon of 40B": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon with a key for each head": {"multi_query": False, "num_kv_heads": 4},
}
METHODS = ["gptj", "gpt_neo", "codegen", "gpt_neox_japanese", "openai-gpt"]
SLOPED = ["bloom", "mpt"]


def model_of(name: str) -> PreTrainedModel:
    if name not in FALCONS:
        return toy_model(name)
    config = toy_config("falcon")
    config.update(FALCONS[name])
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    make_plain(model)
    return model


@cache
def served(name: str, *, native: bool) -> tuple[Served, tuple[Tensor, ...]]:
    """Return a toy at the level of its own code, and what transformers makes of each text."""
    torch.set_num_threads(1)
    model = model_of(name)
    expected = tuple(own_logits(model, text) for text in TEXTS)
    library = open_library(threads=1) if native else None
    options = Options(library=library, without="it isn't built", max_total_tokens=64, fuse=False)
    return bring_up(model, options), expected


@pytest.mark.parametrize("name", [*METHODS, *SLOPED, *FALCONS])
@settings(max_examples=8)
@given(steps=schedules())
def test_any_steps_give_the_models_own_logits(name: str, steps: list[Step]) -> None:
    level, expected = served(name, native=True)
    assert level.level is Level.NATIVE
    assert level.exact
    for found, own in zip(computed(level.make_runner(len(TEXTS) * PAGES), steps), expected, strict=True):
        assert float((found - own).abs().max() / own.abs().max()) < 1e-4


@pytest.mark.parametrize("name", ["gpt_neo", "openai-gpt", "falcon of 40B", *SLOPED])
def test_torch_alone_computes_them_in_packed_steps(name: str) -> None:
    level, expected = served(name, native=False)
    assert level.level in (Level.PAGED, Level.PAGED_MERGED)
    whole: Step = [(at, 0, len(text), False) for at, text in enumerate(TEXTS)]
    for found, own in zip(computed(level.make_runner(len(TEXTS) * PAGES), [whole]), expected, strict=True):
        assert float((found - own).abs().max() / own.abs().max()) < 1e-4


@pytest.mark.parametrize("name", ["gptj", "openai-gpt", "falcon", *SLOPED])
def test_own_code_attends_again_when_it_is_asked_to(name: str) -> None:
    model = model_of(name)
    before = own_logits(model, TEXTS[0])
    assert find_layers(model, 64).attending
    assert (stood_for(model), attending_by(model)) == (True, ATTENTION)
    with eager_attention(model):
        assert not stood_for(model)
        assert torch.equal(own_logits(model, TEXTS[0]), before)
    assert attending_by(model) == ATTENTION
    attend_by(model, "eager")
    attend_by(model, "eager")
    assert torch.equal(own_logits(model, TEXTS[0]), before)


# Of the last one the outer model can't be told how to attend, and what it is made of can
@pytest.mark.parametrize("family", ["dbrx", "llama", "gpt2", "got_ocr2"])
def test_nothing_stands_for_attention_that_is_registered_under_a_name(family: str) -> None:
    model = toy_model(family)
    assert find_layers(model, 64).attending
    assert not stood_for(model)


def test_a_layer_keeps_what_heads_share_once() -> None:
    layers = find_layers(model_of("falcon of 40B"), 64)
    assert [probed.shape.kv_heads for probed in layers.attending.values()] == [2, 2, 2]
    assert [probed.heads for probed in layers.attending.values()] == [4, 4, 4]


@pytest.mark.parametrize("name", SLOPED)
def test_layers_share_their_slopes_and_so_what_is_made_of_them_for_a_step(name: str) -> None:
    layers = find_layers(model_of(name), 64).attending.values()
    assert len({id(probed.how.slopes) for probed in layers}) == 1 < len(layers)


def test_bloom_makes_neither_biases_nor_a_mask_that_nobody_reads() -> None:
    model = model_of("bloom")
    level = bring_up(model, Options(library=None, without="it isn't built", max_total_tokens=64))
    given: list[dict[str, Any]] = []
    block = model.base_model.h[0]
    block.register_forward_pre_hook(lambda _, __, keywords: given.append(keywords), with_kwargs=True)
    whole: Step = [(at, 0, len(text), False) for at, text in enumerate(TEXTS)]
    computed(level.make_runner(len(TEXTS) * PAGES), [whole])
    assert [each["alibi"] for each in given] == [None]
    assert [each["attention_mask"].numel() for each in given] == [1]


def test_falcons_that_round_what_distances_add_attend_by_their_own_code() -> None:
    model = toy_model("falcon")
    model.config.alibi = True
    attend_by(model, ATTENTION)
    assert not stood_for(model)


def test_linears_that_say_the_same_in_other_words_are_plain_ones() -> None:
    model = toy_model("falcon")
    before = own_logits(model, TEXTS[0])
    kinds = {type(each) for each in model.modules() if isinstance(each, torch.nn.Linear)}
    make_plain(model)
    assert len(kinds) == 2
    assert {type(each) for each in model.modules() if isinstance(each, torch.nn.Linear)} == {torch.nn.Linear}
    assert torch.allclose(own_logits(model, TEXTS[0]), before, rtol=1e-4, atol=1e-5)
