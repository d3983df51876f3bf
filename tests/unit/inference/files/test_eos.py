"""Which tokens end a text, as the files of a model say it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.errors import ModelUnavailable
from inference.files.eos import eos_token_ids, tokenizer_eos

ADDED = {"added_tokens": [{"id": 4, "content": "<s>"}, {"id": 9, "content": "</s>"}]}
TALKER = {"eos_token_id": 3}  # of a part that writes no text
TOKENIZER = {"tokenizer_config.json": {"eos_token": "</s>"}, "tokenizer.json": ADDED}


def write(directory: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": 2}, {"eos_token_id": 5}, (2, 9)),
        ({"eos_token_id": 9}, {"eos_token_id": 5}, (9,)),
        ({"eos_token_id": [2]}, {"eos_token_id": 5}, (2,)),
        ({"eos_token_id": [2, 7]}, {}, (2, 7)),
        ({"eos_token_id": []}, {"eos_token_id": 5}, (5, 9)),
        ({"eos_token_id": None}, {"eos_token_id": [5, 9]}, (5, 9)),
        ({}, {"text_config": {"eos_token_id": 6}}, (6, 9)),
        ({}, {"thinker_config": {"text_config": {"eos_token_id": 6}}, "talker_config": TALKER}, (6, 9)),
        ({}, {"text_config": {"vision": 5}, "vision_config": TALKER}, (9,)),
        ({}, {"eos_token_id": -1}, (9,)),
        ({}, {"model_type": "llama"}, (9,)),  # whose class says 2, whatever the tokenizer has there
    ],
)
def test_generation_config_wins_over_config_and_its_list_over_the_tokenizer(
    generation: dict[str, Any], config: dict[str, Any], expected: tuple[int, ...], tmp_path: Path
) -> None:
    write(tmp_path, {**TOKENIZER, "generation_config.json": generation, "config.json": config})
    assert eos_token_ids(tmp_path) == expected


def test_without_generation_config_the_tokenizer_counts_too(tmp_path: Path) -> None:
    assert eos_token_ids(write(tmp_path, {**TOKENIZER, "config.json": {"eos_token_id": 5}})) == (5, 9)


@pytest.mark.parametrize("value", ["2", 2.0, [2, "7"], {"id": 2}, True])
@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_an_id_of_another_type_is_refused(name: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=rf"{name} says that `eos_token_id` is"):
        eos_token_ids(write(tmp_path, {name: {"eos_token_id": value}}))


def test_a_broken_generation_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{broken")
    with pytest.raises(ModelUnavailable, match=r"generation_config\.json can't be read as JSON"):
        eos_token_ids(tmp_path)


@pytest.mark.parametrize("eos", ["</s>", {"content": "</s>", "lstrip": False}])
def test_tokenizers_eos_is_found(tmp_path: Path, eos: object) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    added = [{"id": 4, "content": "<s>"}, {"id": 5, "content": "</s>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert tokenizer_eos(tmp_path) == (5,)


@pytest.mark.parametrize(
    "files",
    [
        {"special_tokens_map.json": {"eos_token": "</s>"}, "tokenizer.json": ADDED},
        {"tokenizer_config.json": {"eos_token": "</s>"}, "tokenizer.json": {"model": {"vocab": {"</s>": 9}}}},
        {
            "tokenizer_config.json": {
                "eos_token": "</s>",
                "added_tokens_decoder": {"9": {"content": "</s>"}, "x": {"content": "</s>"}, "3": 5},
            }
        },
        {"tokenizer_config.json": {"eos_token": "</s>"}, "vocab.json": {"a": 0, "</s>": 9, "b": "x"}},
        {"tokenizer_config.json": {"eos_token": "</s>"}, "added_tokens.json": {"</s>": 9}, "vocab.json": {}},
        {"tokenizer_config.json": {"eos_token": "</s>"}, "tokenizer.json": ADDED, "vocab.json": {"</s>": 7}},
        {  # a fine-tune with the tokenizer.json of its base
            "tokenizer_config.json": {
                "eos_token": "</s>",
                "added_tokens_decoder": {"9": {"content": "</s>"}},
            },
            "tokenizer.json": {"model": {"vocab": {"a": 0}}},
        },
        {
            "tokenizer_config.json": {"eos_token": "</s>"},
            "tokenizer.json": {"model": {"vocab": {"a": 0}}},
            "added_tokens.json": {"</s>": 9},
        },
        {
            "tokenizer_config.json": {"eos_token": "</s>"},
            "tokenizer.json": {"model": {"vocab": [*([["a", 0.0]] * 9), ["</s>", 0.0], 5]}},
        },
    ],
)
def test_tokenizers_eos_is_found_wherever_it_stands(files: dict[str, Any], tmp_path: Path) -> None:
    assert tokenizer_eos(write(tmp_path, files)) == (9,)


def test_tokenizer_without_eos_has_none(tmp_path: Path) -> None:
    assert tokenizer_eos(tmp_path) == ()


@pytest.mark.parametrize("text", ["[]", "{", '{"eos_token": 5}', '{"eos_token": {}}'])
def test_a_tokenizers_files_that_say_nothing_are_passed_over(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(text)
    write(tmp_path, {"tokenizer.json": {"added_tokens": [5, {"content": "</s>"}], "model": []}})
    assert tokenizer_eos(tmp_path) == ()
