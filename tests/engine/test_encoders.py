"""Models with an encoder and a decoder: their texts are transformers' own, and what differs is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from inference.config import EngineConfig, ModelConfig
from inference.engine.engine import TorchCore
from inference.errors import ModelUnavailable
from inference.frontend.client import EngineClient
from inference.text.pipeline import load_text
from tests.engine.cores import Session, config, request
from tests.engine.models import EOS, VOCABULARY, prompts, save_model
from tests.support import LiveServer, error_of, live_server, make_service

TOKENS = 12
PROMPTS = ("ba ce di", "fo gu ha je ki lo mu na", "be", "ca de fi go hu ja ke li mo nu " * 3)
START = 1


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("t5")


@pytest.fixture(scope="module")
def model(directory: Path) -> PreTrainedModel:
    model = save_model("umt5", directory)
    save_tokenizer(directory)
    return model


@pytest.fixture(scope="module")
def server(model: PreTrainedModel, directory: Path) -> Iterator[LiveServer]:
    config = EngineConfig(model=ModelConfig(model_id=str(directory)), threads=1, separate_process=False)
    engine = EngineClient(TorchCore(config), config, lambda: load_text(config.model))
    with live_server(make_service(engine=engine, enable_prefill_logprobs=True)) as live:
        yield live


def save_tokenizer(directory: Path) -> None:
    """Save one as T5's: words begin with a space that the text's first has not, and prompts end with EOS."""
    syllables = [f"{first}{second}" for first in "bcdfghjklmn" for second in "aeiou"]
    pieces = ["<pad>", "<s>", "</s>", "<unk>", *(f"▁{each}" for each in syllables), *syllables]
    vocabulary = {piece: at for at, piece in enumerate(pieces[:VOCABULARY])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", EOS)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(directory)


def generate(server: LiveServer, text: str, **parameters: Any) -> dict[str, Any]:
    asked = {"max_new_tokens": TOKENS, "details": True, **parameters}
    response = server.post("/generate", {"inputs": text, "parameters": asked})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def oracle(model: PreTrainedModel, directory: Path, text: str, **how: Any) -> tuple[list[int], str]:
    """Return the tokens and the text that transformers generates."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    ids = tokenizer(text, return_tensors="pt").input_ids
    tokens = model.generate(ids, max_new_tokens=TOKENS, do_sample=False, **how)[0, 1:].tolist()
    return tokens, tokenizer.decode(tokens, skip_special_tokens=True)


def test_texts_at_once_are_those_of_transformers(
    server: LiveServer, model: PreTrainedModel, directory: Path
) -> None:
    expected = [oracle(model, directory, text) for text in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as several:
        answers = list(several.map(lambda text: generate(server, text), PROMPTS))
    found = [
        ([token["id"] for token in each["details"]["tokens"]], each["generated_text"]) for each in answers
    ]
    assert found == expected
    assert len({tokens for tokens, _ in ((tuple(ids), text) for ids, text in expected)}) > 1


def test_penalties_look_at_what_the_decoder_wrote(
    server: LiveServer, model: PreTrainedModel, directory: Path
) -> None:
    found = generate(server, PROMPTS[3], repetition_penalty=1.5)["details"]["tokens"]
    expected = oracle(model, directory, PROMPTS[3], repetition_penalty=1.5)[0]
    assert [token["id"] for token in found] == expected
    assert expected != oracle(model, directory, PROMPTS[3])[0]


def test_stream_says_the_same_text_piece_by_piece(
    server: LiveServer, model: PreTrainedModel, directory: Path
) -> None:
    body = {"inputs": PROMPTS[1], "parameters": {"max_new_tokens": TOKENS}}
    with server.client() as client, client.stream("POST", "/generate_stream", json=body) as response:
        events = [json.loads(line[5:]) for line in response.iter_lines() if line.startswith("data:")]
    text = "".join(event["token"]["text"] for event in events if not event["token"]["special"])
    assert text == events[-1]["generated_text"] == oracle(model, directory, PROMPTS[1])[1]


def test_prefill_is_what_the_decoder_begins_with(server: LiveServer) -> None:
    details = generate(server, PROMPTS[0], decoder_input_details=True)["details"]
    assert details["prefill"] == [{"id": START, "text": "<s>", "logprob": None}]


def test_prompts_count_the_tokens_that_the_encoder_reads(server: LiveServer) -> None:
    body = {"prompt": PROMPTS[0], "model": "any", "max_tokens": 3, "echo": True}
    answer = server.post("/v1/completions", body).json()
    assert answer["usage"]["prompt_tokens"] == 4
    assert answer["choices"][0]["text"].startswith(PROMPTS[0])


def test_log_probabilities_of_a_prompt_are_refused(server: LiveServer) -> None:
    body = {"prompt": PROMPTS[0], "model": "any", "max_tokens": 3, "echo": True, "logprobs": 1}
    response = server.post("/v1/completions", body)
    assert response.status_code == 422
    assert "this model's encoder reads" in error_of(response)["error"]


def test_grammar_is_followed(server: LiveServer) -> None:
    grammar = {"type": "regex", "value": "(ba|ce)( di){2}"}
    assert generate(server, PROMPTS[2], grammar=grammar)["generated_text"] in ("ba di di", "ce di di")


def test_info_says_why_texts_are_computed_one_at_a_time(server: LiveServer) -> None:
    assert server.get("/info").json()["execution"] == "sequential: it has an encoder and a decoder"


def load(directory: Path, **how: Any) -> tuple[TorchCore, list[str]]:
    """Return a core that was loaded, with what it said."""
    model = ModelConfig(model_id=str(directory), **how.pop("model", {}))
    core = TorchCore(EngineConfig(model=model, threads=1, separate_process=False, **how))
    lines: list[str] = []
    core.load(lines.append)
    core.stop()
    return core, lines


def test_texts_go_on_one_at_a_time_where_layers_are_not_fused(tmp_path: Path) -> None:
    save_model("t5", tmp_path)
    for fuse in (True, False):
        (level,) = [line for line in load(tmp_path, fuse_layers=fuse)[1] if line.startswith("Level ")]
        assert ("prompts whole, one at a time" in level) is fuse
        assert ("batches of texts are switched off" in level) is not fuse


@pytest.mark.parametrize("family", ["t5", "bart+encoder", "mbart+encoder", "m2m_100"])
def test_weights_of_16_bits_are_kept_so(family: str, tmp_path: Path) -> None:
    save_model(family, tmp_path, dtype=torch.bfloat16)
    lines = load(tmp_path)[1]
    assert any("linears packed: " in line and "in bfloat16" in line for line in lines) or not native()


def test_weights_are_rounded_to_8_bits_on_request(tmp_path: Path) -> None:
    if not native():
        pytest.skip("8 bits need the C extension")
    save_model("mbart+encoder", tmp_path)
    lines = load(tmp_path, model={"quantize": "int8"})[1]
    assert any("linears packed: " in line and "in int8" in line for line in lines)


def native() -> bool:
    from inference.kernels.native import open_library

    return open_library() is not None


@pytest.mark.parametrize("name", ["decoder_start_token_id", "bos_token_id"])
def test_start_may_be_said_by_either_file(tmp_path: Path, name: str) -> None:
    save_model("t5", tmp_path)
    forget(tmp_path / "generation_config.json", "decoder_start_token_id", "bos_token_id")
    forget(tmp_path / "config.json", "decoder_start_token_id", "bos_token_id")
    edit(tmp_path / "config.json", **{name: 5})
    config = EngineConfig(model=ModelConfig(model_id=str(tmp_path)), threads=1, separate_process=False)
    core = TorchCore(config)
    assert core.load(lambda _: None).decoder_start == (5,)
    core.stop()


def test_first_token_that_is_forced_comes_before_the_text(tmp_path: Path) -> None:
    save_model("bart+encoder", tmp_path)
    edit(tmp_path / "generation_config.json", forced_bos_token_id=7)
    config = EngineConfig(model=ModelConfig(model_id=str(tmp_path)), threads=1, separate_process=False)
    core = TorchCore(config)
    assert core.load(lambda _: None).decoder_start == (START, 7)
    core.stop()


def test_images_are_refused_where_an_encoder_would_read_them(tmp_path: Path) -> None:
    save_model("t5gemma2", tmp_path)
    config = EngineConfig(model=ModelConfig(model_id=str(tmp_path)), threads=1, separate_process=False)
    core = TorchCore(config)
    vision = core.load(lambda _: None).vision
    core.stop()
    assert vision is not None
    assert vision.reason == "its encoder would read them, which is done with text alone"


def test_model_that_says_no_start_is_refused(tmp_path: Path) -> None:
    save_model("t5", tmp_path)
    for file in ("generation_config.json", "config.json"):
        forget(tmp_path / file, "decoder_start_token_id", "bos_token_id")
    with pytest.raises(
        ModelUnavailable, match=r"add `decoder_start_token_id` to its generation_config\.json"
    ):
        load(tmp_path)


def test_what_such_a_model_cannot_do_is_refused(tmp_path: Path) -> None:
    save_model("t5", tmp_path)
    with pytest.raises(ModelUnavailable, match="--kv-cache-dtype can't be done with this model"):
        load(tmp_path, kv_cache_dtype="bfloat16")


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def forget(file: Path, *names: str) -> None:
    said = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in said.items() if name not in names}))


def test_prompt_and_text_have_all_positions_each(tmp_path: Path) -> None:
    """BART's tables are two: a text isn't cut short by its prompt."""
    model = save_model("bart+encoder", tmp_path)
    positions = model.config.max_position_embeddings
    session = Session(config(tmp_path))
    info, prompt = session.info, prompts(positions)[0]
    begun = len(info.decoder_start)
    room = positions - begun + 1
    assert (info.max_input_tokens, info.max_total_tokens) == (positions, 2 * positions)
    assert info.max_text_tokens == room
    asked = request("a", tuple(prompt), tokens=room, ignore_eos=True)
    heard = session.run([asked])
    session.close()
    found = [output.token_id for output in heard.outputs["a"]]
    written = torch.tensor([[*info.decoder_start, *found[:-1]]])
    assert written.shape[1] == positions
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt]), decoder_input_ids=written).logits[0, begun - 1 :]
    assert found == logits.argmax(-1).tolist()
