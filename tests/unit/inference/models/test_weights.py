from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch import dtype as Dtype  # noqa: E402
from transformers import GemmaConfig, GemmaForCausalLM, LlamaConfig, LlamaForCausalLM  # noqa: E402
from transformers import PreTrainedModel as Model  # noqa: E402
from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding  # noqa: E402

from inference.models.weights import (  # noqa: E402
    NarrowEmbedding,
    NarrowLinear,
    Widened,
    asking_for_weights,
    loading_class,
    narrow_embeddings,
    widen,
)

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 53,
    "pad_token_id": 0,
}
IDS = torch.arange(1, 12)[None]


def save(directory: Path, model_class: type[Model], config: object, dtype: Dtype) -> dict[str, Dtype]:
    """Save a random model in a dtype and return the dtypes of its files."""
    torch.manual_seed(0)
    model = model_class(config).to(dtype)
    model.save_pretrained(directory)
    return {name: tensor.dtype for name, tensor in model.state_dict().items()}


def logits(model: Model) -> Tensor:
    with torch.inference_mode():
        return model.eval()(input_ids=IDS, use_cache=False).logits


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("model_class", "config"),
    [
        (LlamaForCausalLM, LlamaConfig(**SIZES, attention_bias=True, tie_word_embeddings=False)),
        (LlamaForCausalLM, LlamaConfig(**SIZES, tie_word_embeddings=True)),
        (GemmaForCausalLM, GemmaConfig(**SIZES)),  # computes a factor of its embedding while it is made
    ],
)
def test_stored_in_16_bits_it_computes_what_it_would_in_float32(
    tmp_path: Path, model_class: type[Model], config: object, dtype: Dtype
) -> None:
    stored = save(tmp_path, model_class, config, dtype)
    wide = model_class.from_pretrained(tmp_path, dtype=torch.float32)
    model = loading_class(model_class, stored, None).from_pretrained(tmp_path, dtype=torch.float32)
    widen(model)
    narrow = [module for module in model.modules() if isinstance(module, NarrowLinear | NarrowEmbedding)]
    assert len(narrow) == 2 * 7 + 2
    assert all(module.weight.dtype == dtype for module in narrow)
    assert torch.allclose(logits(model), logits(wide), atol=1e-6)


def test_tied_weights_stay_one(tmp_path: Path) -> None:
    stored = save(tmp_path, LlamaForCausalLM, LlamaConfig(**SIZES, tie_word_embeddings=True), torch.bfloat16)
    model = loading_class(LlamaForCausalLM, stored, None).from_pretrained(tmp_path, dtype=torch.float32)
    widen(model)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_everything_else_is_float32(tmp_path: Path) -> None:
    stored = save(tmp_path, LlamaForCausalLM, LlamaConfig(**SIZES, attention_bias=True), torch.bfloat16)
    model = loading_class(LlamaForCausalLM, stored, None).from_pretrained(tmp_path, dtype=torch.float32)
    widen(model)
    assert model.model.norm.weight.dtype == torch.float32
    assert model.model.layers[0].self_attn.q_proj.bias.dtype == torch.float32


def test_float32_files_are_rounded_only_when_asked(tmp_path: Path) -> None:
    stored = save(tmp_path, LlamaForCausalLM, LlamaConfig(**SIZES), torch.float32)
    as_stored = loading_class(LlamaForCausalLM, stored, None).from_pretrained(tmp_path, dtype=torch.float32)
    rounded = loading_class(LlamaForCausalLM, stored, torch.bfloat16).from_pretrained(
        tmp_path, dtype=torch.float32
    )
    weights = [model.model.layers[1].mlp.up_proj.weight for model in (as_stored, rounded)]
    assert [weight.dtype for weight in weights] == [torch.float32, torch.bfloat16]
    assert torch.equal(weights[0].bfloat16(), weights[1])


def test_wide_linear_is_widened_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.models.weights._WIDENED", 32)
    linear = nn.Linear(8, 11).bfloat16()
    expected = nn.functional.linear(x := torch.randn(3, 8), linear.weight.float(), linear.bias.float())
    linear.__class__ = NarrowLinear
    assert torch.allclose(linear(x), expected, atol=1e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_float32_embedding_that_fits_16_bits_is_kept_in_16(tmp_path: Path, tied: bool) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied)).bfloat16().float()
    expected = logits(model)
    narrow_embeddings(model)
    assert model.get_input_embeddings().weight.dtype == torch.bfloat16
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) is tied
    assert torch.allclose(logits(model), expected, atol=1e-6)


def test_rows_are_those_asked_for_whoever_else_asks_meanwhile() -> None:
    """Who looks at images does so on a thread of its own."""
    torch.manual_seed(0)
    own = Gemma3TextScaledWordEmbedding(50, 8, 0, embed_scale=2.0).bfloat16()
    expected = own.weight.float() * 2.0
    narrow = NarrowEmbedding(own)
    wrong: list[str] = []

    def ask(count: int) -> None:
        for at in range(1000):
            ids = torch.arange(count) + at % 20
            try:
                wrong.extend([] if torch.equal(narrow(ids), expected[ids]) else ["other rows"])
            except Exception as error:
                wrong.append(repr(error))

    with ThreadPoolExecutor(2) as pool:
        [*pool.map(ask, (3, 17))]
    assert wrong == []


def test_embedding_with_finer_numbers_stays() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    narrow_embeddings(model)
    assert model.get_input_embeddings().weight.dtype == torch.float32


class Reading(nn.Module):
    """Asks for a linear's dtype, and multiplies with another one's weight itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.called, self.read, self.plain = (nn.Linear(8, 8).bfloat16() for _ in range(3))

    def forward(self, given: Tensor) -> Tensor:
        found = self.called(given.to(self.called.weight.dtype)) @ self.read.weight.T
        result: Tensor = self.plain(found)
        return result


def test_code_that_asks_for_a_weight_is_shown_one_of_float32() -> None:
    narrow, wide = Reading(), Reading().float()
    widen(narrow)
    given = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        with asking_for_weights():
            assert torch.equal(narrow(given), wide(given))
        assert torch.equal(narrow(given), wide(given))
    assert isinstance(narrow.read.weight, Widened)
    assert type(narrow.plain.weight) is nn.Parameter
    assert {each.get_weight().dtype for each in narrow.children()} == {torch.bfloat16}


class Scaled(nn.Embedding):
    """Does more than to look up, as BART's, M2M-100's and XGLM's."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * 3


@pytest.mark.parametrize("ids", [[[7]], [[1]], [[3, 3]], [[0, 1, 19]]], ids=str)
def test_fewer_rows_than_the_place_of_padding_are_looked_up(ids: list[list[int]]) -> None:
    words = Scaled(20, 4, padding_idx=2).bfloat16()
    model, asked = nn.ModuleDict({"words": words}), torch.tensor(ids)
    expected = 3 * words.weight.float()[asked]
    widen(model)
    assert isinstance(model["words"], NarrowEmbedding)
    assert torch.equal(model["words"](asked), expected)


class Positions(nn.Embedding):
    """Finds the rows by itself, as Bart's."""

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        return super().forward(torch.arange(start, start + ids.shape[-1]) + 2)


def test_embedding_that_finds_its_rows_itself_becomes_float32() -> None:
    model = nn.ModuleDict({"positions": Positions(20, 4).bfloat16(), "words": nn.Embedding(20, 4).bfloat16()})
    rows = model["positions"].weight.float()
    widen(model)
    assert isinstance(model["words"], NarrowEmbedding)
    assert torch.equal(model["positions"](IDS, start=3), rows[5 : 5 + IDS.shape[1]])
