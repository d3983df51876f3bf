"""Adapters by name and by file: what is read, and what is refused with which words."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from inference.config import EngineConfig, Found, ModelConfig, again
from inference.errors import ModelUnavailable
from inference.files.adapters import (
    AdapterSource,
    adapter_names,
    find_adapters,
    held_bytes,
    parse_adapters,
    read_files,
)

LINEAR = "model.layers.0.self_attn.q_proj"
NAMED = f"base_model.model.{LINEAR}"


def save(directory: Path, tensors: dict[str, Any] | None = None, **members: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    description = {"peft_type": "LORA", "lora_alpha": 6, **members}
    (directory / "adapter_config.json").write_text(json.dumps(description))
    given = sides() if tensors is None else tensors
    save_file(given, directory / "adapter_model.safetensors")
    return directory


def sides(down: tuple[int, ...] = (3, 8), up: tuple[int, ...] = (16, 3), dtype: Any = None) -> dict[str, Any]:
    return {
        f"{NAMED}.lora_A.weight": torch.ones(down, dtype=dtype),
        f"{NAMED}.lora_B.weight": torch.ones(up, dtype=dtype),
    }


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("org/name", AdapterSource("org/name", "org/name")),
        ("org/name@v1", AdapterSource("org/name", "org/name", "v1")),
        ("a=/some/where", AdapterSource("a", "/some/where")),
        (" a = org/name@main ", AdapterSource("a", "org/name", "main")),
    ],
)
def test_a_source_is_read_as_tgi_does(text: str, source: AdapterSource) -> None:
    assert AdapterSource.parse(text) == source


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "a" * 201])
def test_names_that_no_log_should_have_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="printable names of at most 200 characters"):
        AdapterSource.parse(f"{name}=x")


def test_a_revision_of_a_directory_has_no_effect_and_that_is_told(tmp_path: Path) -> None:
    directory, told = save(tmp_path), list[str]()
    (found,) = find_adapters(ModelConfig(adapters=(f"a={directory}@main",)), told.append)
    assert found.directory == Path(directory)
    assert ["The adapter a is a directory, in which @main has no effect"] == told


def test_one_from_the_hub_stays_at_the_commit_that_was_found_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, bool]] = []
    first, later = (save(tmp_path / (letter * 40)) for letter in "ab")

    def download(_: str, *, revision: str | None, local_files_only: bool = False, **__: object) -> str:
        asked.append((revision, local_files_only))
        return str(first if len(asked) == 1 or revision == first.name else later)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    config = EngineConfig(model=ModelConfig(model_id="/data/base", adapters=("one=org/one@v1",)))
    (found,) = find_adapters(config.model, print)
    assert (found.name, found.directory, found.commit) == ("one", first, first.name)
    told = Found(None, None, {"one": first.name})
    (found,) = find_adapters(again(config, told).model, print)
    assert found.directory == first
    assert asked == [("v1", False), (first.name, True)]
    assert again(config, told).model.revision is None


def test_what_keeps_a_directory_from_being_looked_for_is_told_with_the_name(tmp_path: Path) -> None:
    (tmp_path / "file.safetensors").write_bytes(b"")
    config = ModelConfig(adapters=(f"a={tmp_path / 'file.safetensors'}",))
    with pytest.raises(ModelUnavailable, match=r"adapter `a` can't be loaded: .* is a file"):
        find_adapters(config, print)


def test_the_plan_is_told_what_they_take(tmp_path: Path) -> None:
    files = read_files("a", save(tmp_path))
    assert held_bytes([files, files], None) == 2 * 4 * (3 * 8 + 2 * 16 * 3)
    assert held_bytes([files], 2) == 3 * 2 * (3 * 8 + 16 * 3)  # at most
    narrow = read_files("a", save(tmp_path, sides(dtype=torch.bfloat16)))
    assert held_bytes([narrow], None) == 2 * (3 * 8 + 2 * 16 * 3)


@pytest.mark.parametrize("text", ["", "=x", "a=", "a=b=c", "a@b@c", "a=b@", "@v1"])
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be adapters such as"):
        AdapterSource.parse(text)


@pytest.mark.parametrize(
    ("texts", "words"),
    [(["a=x", "a=y"], "several are `a`"), (["tgi=x"], "must not name an adapter `tgi`")],
)
def test_names_are_told_apart(texts: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_adapters(texts)


def test_names_are_what_requests_ask_for() -> None:
    assert adapter_names(("a=x", "org/name@v1")) == {"a", "org/name"}


def test_none_has_the_models_name(tmp_path: Path) -> None:
    config = ModelConfig(model_id="m", adapters=(f"m={save(tmp_path)}",))
    with pytest.raises(ModelUnavailable, match="adapter `m` can't be loaded: the model has the same name"):
        find_adapters(config, print)


def test_a_directory_that_is_not_there_is_not_looked_for_on_the_hub() -> None:
    config = ModelConfig(adapters=("a=/no/such/place",))
    with pytest.raises(
        ModelUnavailable, match="there is no directory `/no/such/place`; give another, or a hub"
    ):
        find_adapters(config, print)


@pytest.mark.parametrize(
    ("members", "scale"),
    [
        ({}, 2.0),
        ({"lora_alpha": 1.5}, 0.5),
        ({"use_rslora": True}, 6 / math.sqrt(3)),
        ({"alpha_pattern": {"q_proj": 3}}, 1.0),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 3}}, 1.0),
        ({"alpha_pattern": {r".*\.0\..*": 3}}, 1.0),
        ({"alpha_pattern": {"proj": 3, "q_pro|k_proj": 4, "other|q_proj": 9}}, 3.0),
        ({"alpha_pattern": {r"model\.layers\.[01]\.self_attn\.q_proj$": 3}}, 1.0),
        ({"lora_alpha": None, "alpha_pattern": None, "loftq_config": {}, "use_bdlora": None}, None),
    ],
)
def test_the_scale_is_pefts(tmp_path: Path, members: dict[str, Any], scale: float | None) -> None:
    if scale is None:
        with pytest.raises(ModelUnavailable, match="`lora_alpha` is null, and must be a number"):
            read_files("a", save(tmp_path, **members))
        return
    files = read_files("a", save(tmp_path, **members))
    assert files.scales == {LINEAR: pytest.approx(scale)}
    assert files.tensors == {LINEAR: (f"{NAMED}.lora_A.weight", f"{NAMED}.lora_B.weight")}
    assert files.numbers == 3 * 8 + 16 * 3


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"peft_type": "IA3"}, '`peft_type` is "IA3", and only LORA is served: merge it'),
        ({"peft_type": None}, "`peft_type` is null"),
        ({"use_dora": True}, "`use_dora` is true, which asks for more than low ranks"),
        ({"use_other": True}, "`use_other` is true, which asks for more"),
        ({"arrow_config": {"top_k": 2}}, "`arrow_config` is"),
        ({"bias": "all"}, '`bias` is "all", which asks for more'),
        ({"modules_to_save": ["lm_head"]}, "`modules_to_save` is"),
        ({"layer_replication": [[0, 4]]}, "`layer_replication` is"),
        ({"trainable_token_indices": [1]}, "`trainable_token_indices` is"),
        ({"init_lora_weights": "pissa_niter_4"}, "was begun by .*, which changes the model's own weights"),
        ({"lora_alpha": "8"}, '`lora_alpha` is "8", and must be a number'),
        ({"lora_alpha": True}, "`lora_alpha` is true"),
        ({"lora_alpha": 10**400}, "`lora_alpha` is 1000.*, and must be a number up to 1e"),
        ({"lora_alpha": float("nan")}, "`lora_alpha` is NaN"),
        ({"alpha_pattern": [1]}, "`alpha_pattern` is .*, and must be an object"),
        *(
            ({"alpha_pattern": {pattern: 3}}, "`alpha_pattern` has .*: keys must be ends of paths")
            for pattern in (
                *("[", "(model\\.|.*)*x", "(.*)*" * 8 + "Z", ".*" * 3 + "Z", "(" * 2000, "a{9}", "a" * 201),
                *("[9-0]", "x*"),
            )
        ),
    ],
)
def test_a_description_that_asks_for_more_is_refused(
    tmp_path: Path, members: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelUnavailable, match=f"The adapter `a` can't be loaded: .*{words}"):
        read_files("a", save(tmp_path, **members))


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({}, "is empty"),
        (
            sides() | {f"{NAMED}.lora_magnitude_vector": torch.ones(3)},
            "lora_magnitude_vector.* is no low rank",
        ),
        (sides() | {"lm_head.weight": torch.ones(3)}, "lm_head.weight.* is no low rank"),
        (dict(list(sides().items())[:1]), r"are \(3, 8\) in F32; they must be \(rank, k\)"),
        (sides(up=(16, 4)), r"are \(3, 8\) in F32 and \(16, 4\) in F32"),
        (sides(down=(3, 8, 1)), r"are \(3, 8, 1\) in F32"),
        (sides(down=(0, 8), up=(16, 0)), r"are \(0, 8\) in F32"),
        (sides(dtype=torch.int32), r"are \(3, 8\) in I32"),
        (
            sides() | {f"{NAMED}.lora_A.default.weight": torch.ones(3, 8)},
            f"`{LINEAR}` has two of `lora_A`: it is damaged",
        ),
    ],
)
def test_tensors_that_are_no_low_ranks_are_refused(
    tmp_path: Path, tensors: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelUnavailable, match=f"The adapter `a` can't be loaded: .*{words}"):
        read_files("a", save(tmp_path, tensors))


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"no `adapter_config.json` in "):
        read_files("a", tmp_path)
    save(tmp_path)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ModelUnavailable, match=r"no `adapter_model.safetensors` in .*, only pickled weights"):
        read_files("a", tmp_path)
