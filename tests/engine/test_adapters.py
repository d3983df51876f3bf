"""Texts by adapters are those of models that have them in their weights, whatever runs beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from inference.config import EngineConfig
from inference.errors import ModelUnavailable
from inference.machine import Machine
from inference.planning.demand import Demand
from inference.planning.plan import Plan, make_plan
from inference.types import CoreRequest
from tests.engine.adapters import ToyAdapter, toy_adapter
from tests.engine.cores import Heard, Session, config, request
from tests.engine.models import VOCABULARY, generate, prompts, save_model

PROMPTS = prompts(9, 40, 17)
TOKENS = 16
NEVER = VOCABULARY + 1
ATTENTION = dict.fromkeys(("llama", "stablelm", "qwen3_moe"), ("q_proj", "v_proj"))
# Of others its code reads the weights by itself, or they choose experts; with kv_b_proj's no latents are kept
READ = {
    "mamba": ("in_proj", "out_proj"),
    "qwen3_next": ("in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj"),
    "minicpm3": ("q_b_proj", "kv_a_proj_with_mqa", "o_proj"),
    "afmoe": ("q_proj", "gate_proj", "v_proj", "o_proj"),
    "youtu": ("q_a_proj", "kv_a_proj_with_mqa", "o_proj"),
}
# A family of each level, what it is started with, and the level
SERVED: dict[str, tuple[str, dict[str, Any], str]] = {
    "fused": ("llama", {}, "fused"),
    "merged_by_the_model": ("phi3", {}, "fused"),
    "shards": ("llama", {"shards": 2}, "fused"),
    "shards_merged_by_the_model": ("phi3", {"shards": 2}, "fused"),
    "native": ("stablelm", {"fuse_layers": False}, "native"),
    "merged_in_another_order": ("gpt_neox", {}, "fused"),
    "shards_in_another_order": ("gpt_neox", {"shards": 2}, "fused"),
    "gates_behind_queries": ("afmoe", {}, "fused"),
    "attention_within_a_module": ("gpt_neo", {}, "fused"),
    "shards_of_what_was_learned": ("apertus", {"shards": 2}, "fused"),
    "mixture": ("qwen3_moe", {}, "fused"),
    "mixture_that_shares_an_mlp": ("glm4_moe", {}, "fused"),
    "mixture_whose_gate_is_changed": ("qwen2_moe", {}, "native"),
    "mixture_not_fused": ("qwen3_moe", {"fuse_layers": False}, "native"),
    "latents": ("minicpm3", {}, "native"),
    "latents_fused": ("youtu", {}, "fused"),
    "latents_that_are_expanded": ("deepseek_v3", {}, "native"),
    "turned": ("gpt2", {}, "fused"),
    "turned_not_fused": ("gpt2", {"fuse_layers": False}, "native"),
    "torch": ("llama", {"native_kernels": False}, "paged+merged"),
    "states": ("qwen3_5_text", {}, "fused"),
    "states_by_head": ("qwen3_next", {}, "fused"),
    "states_of_channels": ("mamba", {}, "fused"),
    "states_by_its_own_code": ("qwen3_5_text", {"native_kernels": False}, "paged+merged"),
    "batched": ("xglm", {}, "batched"),
    "one_by_one": ("trocr", {}, "sequential"),
    "without_a_cache": ("rwkv", {}, "uncached"),
    "device": ("llama", {"device_path": True}, "fused"),
    "device_own_code": ("stablelm", {"device_path": True}, "paged+merged"),
    "device_asked_for_a_weight": ("hunyuan_v1_moe", {"device_path": True}, "paged+merged"),
    "gpu": ("llama", {"device": "cuda"}, "fused"),
    "gpu_own_code": ("stablelm", {"device": "cuda"}, "paged+merged"),
}
CASES = [
    pytest.param(served, id=name, marks=[pytest.mark.gpu] * name.startswith("gpu"))
    for name, served in SERVED.items()
]


@dataclass(frozen=True)
class Adapted:
    """A model with three adapters, and what each of them, or none, makes of each prompt."""

    session: Session
    texts: dict[int, list[list[int]]]


@pytest.fixture(scope="module", params=CASES)
def adapted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    family, options, level = request.param
    directory = tmp_path_factory.mktemp(family)
    model = save_model(family, directory / "model")
    adapters = [
        toy_adapter(model, READ.get(family), rank=4),
        toy_adapter(model, ATTENTION.get(family, READ.get(family)), rank=7, seed=1, rslora=True),
        rounded(toy_adapter(model, READ.get(family), rank=1, seed=2)),
    ]
    for place, adapter in enumerate(adapters):
        adapter.save(directory / str(place), torch.bfloat16 if place == 2 else torch.float32)
    texts = {-1: _texts(model)}
    texts |= {place: _texts(each.merged(model)) for place, each in enumerate(adapters)}
    named = tuple(f"number-{place}={directory / str(place)}" for place in range(len(adapters)))
    others = {name: value for name, value in options.items() if not name.startswith("device")}
    given = config(directory / "model", adapters=named, max_batch_prefill_tokens=24, **others)
    device = replace(given.model, device=options.get("device", "cpu"), dtype="float32")
    session = Session(replace(given, model=device), device_path=options.get("device_path", False))
    assert session.info.level.split(":")[0] == level, session.info.level
    assert session.info.adapters == {"number-0": 0, "number-1": 1, "number-2": 2}
    yield Adapted(session, texts)
    session.close()


def rounded(adapter: ToyAdapter) -> ToyAdapter:
    """Return an adapter as it is when it was stored in bfloat16."""
    sides = {
        path: (down.bfloat16().float(), up.bfloat16().float()) for path, (down, up) in adapter.sides.items()
    }
    return replace(adapter, sides=sides)


def _texts(model: PreTrainedModel) -> list[list[int]]:
    return [generate(model, prompt, TOKENS, eos_token_id=NEVER) for prompt in PROMPTS]


def _ask(adapter: int, prompt: int, salt: str = "") -> CoreRequest:
    name = f"{adapter}/{prompt}/{salt}"
    return request(name, PROMPTS[prompt], tokens=TOKENS, ignore_eos=True, adapter=adapter, salt=salt)


def _check(heard: Heard, asked: list[CoreRequest], adapted: Adapted) -> None:
    for each in asked:
        prompt = PROMPTS.index(each.prompt_ids)
        assert heard.tokens(each.id) == adapted.texts[each.adapter][prompt], each.id


def test_adapters_change_the_text(adapted: Adapted) -> None:
    for prompt in range(len(PROMPTS)):
        assert len({tuple(texts[prompt]) for texts in adapted.texts.values()}) == len(adapted.texts)


@pytest.mark.parametrize("adapter", [0, 1, 2, -1])
def test_alone(adapted: Adapted, adapter: int) -> None:
    asked = [_ask(adapter, 1, salt="alone")]
    _check(adapted.session.run(asked), asked, adapted)


def test_side_by_side_and_from_the_cache(adapted: Adapted) -> None:
    for _ in range(2):  # the second time each finds its own keys and values, and nobody else's
        asked = [_ask(adapter, prompt) for prompt in range(len(PROMPTS)) for adapter in (2, -1, 0, 1)]
        _check(adapted.session.run(asked), asked, adapted)


def test_a_prompt_in_pieces_beside_a_text_of_another_adapter(adapted: Adapted) -> None:
    first, late = _ask(0, 0, salt="first"), [_ask(adapter, 1, salt="late") for adapter in (1, -1, 0)]
    heard = Heard()
    adapted.session.submit(first)
    while len(heard.outputs.get(first.id, ())) < 2:
        adapted.session.listen(heard)
    for each in late:
        adapted.session.submit(each)
    while not all(heard.ended(each.id) for each in (first, *late)):
        adapted.session.listen(heard)
    _check(heard, [first, *late], adapted)
    assert any(stats.prefill_tokens and stats.decode_sequences for stats in heard.stats)


def test_the_plan_counts_what_they_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save_model("llama", tmp_path / "model")
    adapter = toy_adapter(model, rank=5)
    adapter.save(tmp_path / "adapter")
    planned: list[int] = []

    def note(given: EngineConfig, demand: Demand, machine: Machine) -> Plan:
        planned.append(demand.weights_bytes)
        return make_plan(given, demand, machine)

    monkeypatch.setattr("inference.engine.engine.make_plan", note)
    for adapters in ((), (f"a={tmp_path / 'adapter'}",)):
        Session(config(tmp_path / "model", adapters=adapters)).close()
    numbers = sum(down.numel() + 2 * up.numel() for down, up in adapter.sides.values())
    assert planned[1] - planned[0] == 4 * numbers


def test_one_of_the_eyes_alone_is_refused_and_one_of_both_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = save_model("qwen2_5_vl", tmp_path / "model")
    eyes = toy_adapter(model, ("visual.merger.mlp.0",))
    assert len(eyes.sides) == 1
    eyes.save(tmp_path / "eyes")
    with pytest.raises(ModelUnavailable, match="adapter `a` can't be loaded: text doesn't come through any"):
        Session(config(tmp_path / "model", adapters=(f"a={tmp_path / 'eyes'}",)))
    both = toy_adapter(model, ("visual.merger.mlp.0", "language_model.layers.0.self_attn.q_proj"))
    both.save(tmp_path / "both")
    Session(config(tmp_path / "model", adapters=(f"a={tmp_path / 'both'}",))).close()
    assert "The adapter a adds to 1 linears that text doesn't come through" in caplog.text


@pytest.mark.parametrize(("family", "linear"), [("mamba", "dt_proj"), ("longcat_flash", "router.classifier")])
def test_one_that_the_models_code_passes_by_is_refused(family: str, linear: str, tmp_path: Path) -> None:
    model = save_model(family, tmp_path / "model")
    toy_adapter(model, (linear,)).save(tmp_path / "adapter")
    given = config(tmp_path / "model", adapters=(f"odd={tmp_path / 'adapter'}",))
    with pytest.raises(ModelUnavailable, match=r"adapter `odd` can't be loaded: .* the model's code fails"):
        Session(given)


@pytest.mark.parametrize(("family", "linears"), [("deepseek_v32", ("kv_b_proj",)), ("roformer", None)])
def test_one_whose_linears_are_given_other_rows_than_the_steps_is_refused(
    family: str, linears: tuple[str, ...] | None, tmp_path: Path
) -> None:
    """One is given all that a cache keeps, the other, in its head, only what gets logits."""
    model = save_model(family, tmp_path / "model")
    toy_adapter(model, linears).save(tmp_path / "adapter", torch.float32)
    with pytest.raises(ModelUnavailable, match="a row for each of the step's tokens"):
        Session(config(tmp_path / "model", adapters=(f"one={tmp_path / 'adapter'}",)))
