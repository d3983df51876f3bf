from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.serving.vocabulary import SPECIAL, write_tokenizer
from benchmarks.serving.workloads import WORKLOADS, Words

SIZE = 9000


@pytest.fixture(scope="module", params=["smollm", "qwen2"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    write_tokenizer(directory, request.param, SIZE)
    return directory


def test_it_has_just_so_many_tokens_and_each_is_reached(directory: Path) -> None:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert SIZE == tokenizer.get_vocab_size()
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == [0, 1, 2]
    text = "Any text, with ünïcode and \n 123."
    assert text == tokenizer.decode(tokenizer.encode(text).ids)


@pytest.mark.parametrize("name", ["c1", "mix8", "prefix8"])
def test_prompts_have_just_as_many_tokens_as_the_workload_says(directory: Path, name: str) -> None:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    prompts = Words(directory).prompts(WORKLOADS[name], 0)
    counts = {len(tokenizer.encode(prompt).ids) for prompt in prompts}
    assert (counts, len(set(prompts))) == (WORKLOADS[name].prompts, WORKLOADS[name].requests)


def test_a_second_run_has_the_prefix_of_the_first(directory: Path) -> None:
    words = Words(directory)
    first, again, repeat = (words.prompts(WORKLOADS[name], 1) for name in ("prefix8", "again8", "repeat8"))
    shared = len(first[0]) // 2  # characters; 1,024 of 1,056 tokens are shared
    assert {prompt[:shared] for prompt in first} == {prompt[:shared] for prompt in again}
    assert first == repeat
    assert not set(first) & set(again)
    assert first != words.prompts(WORKLOADS["prefix8"], 2)


def test_words_are_written_beside_it(directory: Path) -> None:
    words = json.loads((directory / "words.json").read_text())["words"]
    assert len(words) > 1000
    assert all(word.startswith(" ") and word[1:].isalpha() for word in words)
