"""Adapters that come while the engine runs compute what they compute from the start, and disturb nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from inference.adapters import AdapterChange, AdapterChanged, AdapterEdition, place_of
from inference.config import EngineConfig
from inference.errors import ModelUnavailable
from inference.files.allowed import allowed_files
from inference.machine import Machine
from inference.planning.demand import Demand
from inference.planning.plan import Plan, make_plan
from inference.types import CoreOutput, CoreRequest, Frame
from tests.engine.adapters import toy_adapter
from tests.engine.cores import SECONDS, Heard, Session, config, request
from tests.engine.models import VOCABULARY, generate, make_model, prompts, save_model

PROMPTS = prompts(9, 40, 17)
TOKENS = 16
NEVER = VOCABULARY + 1


@dataclass
class Talk:
    """A session that is asked for changes, too."""

    session: Session
    heard: Heard = field(default_factory=Heard)
    editions: list[AdapterEdition] = field(default_factory=list)
    changed: list[AdapterChanged] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session.core.start(self.session.frames.put)

    def listen(self) -> Frame:
        """Take in the next frame."""
        frame = self.session.frames.get(timeout=SECONDS)
        self.heard.add(frame)
        self.editions += [] if frame.edition is None else [frame.edition]
        self.changed += frame.changed
        return frame

    def change(self, name: str, source: str | None, *, replaces: bool = False, heard: bool = True) -> str:
        """Ask for a change and wait for what becomes of it; return why it was refused."""
        before = len(self.changed)
        self.session.core.change(AdapterChange("c", name, source, replaces))
        while len(self.changed) == before:
            self.listen()
        if heard and self.editions:
            self.session.core.heard(self.editions[-1].number)
        return self.changed[-1].refusal

    def number(self, name: str) -> int:
        """Return the number of one by the newest edition."""
        return self.editions[-1].adapters[name]

    def run(self, *asked: CoreRequest) -> list[list[CoreOutput]]:
        """Return what is said of each request until all have ended."""
        for each in asked:
            self.session.submit(each)
        while not all(self.heard.ended(each.id) for each in asked):
            self.listen()
        return [self.heard.outputs[each.id] for each in asked]


def ask(name: str, adapter: int, prompt: int = 1, tokens: int = TOKENS) -> CoreRequest:
    return request(name, PROMPTS[prompt], tokens=tokens, ignore_eos=True, adapter=adapter)


def said(outputs: list[CoreOutput]) -> list[tuple[int, float]]:
    return [(each.token_id, each.logprob) for each in outputs]


def configured(directory: Path, *names: str) -> EngineConfig:
    """Return how an engine is started that has some adapters from the start, and may load others."""
    root = directory / "allowed"
    given = config(directory / "model", tuple(f"{name}={root / name}" for name in names))
    return replace(given, model=replace(given.model, adapter_directory=str(root), dtype="float32"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model and adapters for it, and what transformers makes of each that is merged."""
    directory = tmp_path_factory.mktemp("later")
    model = save_model("llama", directory / "model")
    for seed, name in enumerate(("a", "b", "c")):
        toy_adapter(model, rank=4 + seed, seed=seed).save(directory / "allowed" / name)
    return directory


@pytest.fixture
def talk(place: Path) -> Iterator[Talk]:
    session = Session(configured(place))
    yield Talk(session)
    session.close()


def test_what_it_computes_is_what_one_from_the_start_computes_bit_for_bit(place: Path, talk: Talk) -> None:
    session = Session(configured(place, "a", "b"))
    from_start = Talk(session)
    assert session.info.adapters == {"a": 0, "b": 1}
    expected = [from_start.run(ask(name, number))[0] for number, name in enumerate("ab")]
    session.close()
    for name in "ba":
        assert talk.change(name, name) == ""
    for name, wanted in zip("ab", expected, strict=True):
        assert said(talk.run(ask(f"{name} later", talk.number(name)))[0]) == said(wanted)


def test_its_texts_are_those_of_a_model_that_has_it_in_its_weights(place: Path, talk: Talk) -> None:
    model = make_model("llama")
    assert talk.change("b", str(place / "allowed" / "b")) == ""
    wanted = [
        generate(toy_adapter(model, rank=5, seed=1).merged(model), prompt, TOKENS, eos_token_id=NEVER)
        for prompt in PROMPTS
    ]
    found = talk.run(*(ask(f"{at}", talk.number("b"), at) for at in range(len(PROMPTS))))
    assert [[each.token_id for each in outputs] for outputs in found] == wanted


def test_texts_that_stream_meanwhile_are_the_same_bit_for_bit(place: Path, talk: Talk) -> None:
    assert talk.change("a", "a") == ""
    adapters = (-1, talk.number("a"))
    alone = [said(talk.run(ask(f"alone {each}", each, tokens=200))[0]) for each in adapters]
    running = [
        request(f"beside {each}", PROMPTS[1], tokens=200, ignore_eos=True, adapter=each, salt="s")
        for each in adapters
    ]
    for each in running:
        talk.session.submit(each)
    changes = 0
    while not all(talk.heard.ended(each.id) for each in running):
        talk.listen()
        if all(each.id in talk.heard.outputs for each in running):  # they are in the middle of it
            assert talk.change("b", "b") == ""
            assert talk.change("b", None) == ""
            changes += 1
    assert changes > 1
    assert [said(talk.heard.outputs[each.id]) for each in running] == alone


def test_one_that_is_unloaded_in_use_computes_its_text_to_the_end(place: Path, talk: Talk) -> None:
    assert talk.change("a", "a") == ""
    number = talk.number("a")
    expected = said(talk.run(ask("before", number, tokens=200))[0])
    running = request("running", PROMPTS[1], tokens=200, ignore_eos=True, adapter=number, salt="s")
    talk.session.submit(running)
    while running.id not in talk.heard.outputs:
        talk.listen()
    assert talk.change("a", None) == ""
    assert "a" not in talk.editions[-1].adapters
    assert talk.change("b", "b") == ""  # which must not take the place of one that computes
    assert place_of(talk.number("b")) != place_of(number)
    assert not talk.heard.ended(running.id), "it is to be seen beside it"
    while not talk.heard.ended(running.id):
        talk.listen()
    assert said(talk.heard.outputs[running.id]) == expected
    talk.session.submit(ask("late", number))  # which nobody who has heard of the edition asks
    while "late" not in talk.heard.failures:
        talk.listen()
    assert talk.change("c", "c") == ""
    assert place_of(talk.number("c")) == place_of(number)  # free again


def test_before_all_have_heard_its_place_is_nobody_elses(place: Path, talk: Talk) -> None:
    assert talk.change("a", "a") == ""
    number = talk.number("a")
    expected = said(talk.run(ask("before", number))[0])
    assert talk.change("a", None, heard=False) == ""
    assert talk.change("b", "b", heard=False) == ""
    late = request("late", PROMPTS[1], tokens=TOKENS, ignore_eos=True, adapter=number, salt="s")
    assert said(talk.run(late)[0]) == expected  # by somebody who hasn't


def test_what_the_cache_holds_of_one_is_never_found_by_another_in_its_place(place: Path, talk: Talk) -> None:
    assert talk.change("n", "a") == ""
    first = talk.run(ask("first", talk.number("n")))[0]
    again = talk.run(ask("again", talk.number("n")))[0]
    assert again[0].cached_tokens > 0
    before = talk.number("n")
    assert talk.change("n", None) == ""
    assert talk.change("n", "b") == ""
    assert place_of(talk.number("n")) == place_of(before)
    other = talk.run(ask("other", talk.number("n")))[0]
    assert other[0].cached_tokens == 0
    assert said(other) != said(first)
    assert talk.change("n", "c", replaces=True) == ""
    replaced = talk.run(ask("replaced", talk.number("n")))[0]
    assert replaced[0].cached_tokens == 0
    assert len({tuple(said(each)) for each in (first, other, replaced)}) == 3


def test_what_does_not_fit_or_makes_nan_is_refused_and_leaves_nothing(place: Path, talk: Talk) -> None:
    root = place / "allowed"
    toy = toy_adapter(make_model("llama"), rank=2)
    narrow = {path: (down[:, :-1].contiguous(), up) for path, (down, up) in toy.sides.items()}
    replace(toy, sides=narrow).save(root / "narrow")
    damaged = {path: (down, up * float("nan")) for path, (down, up) in toy.sides.items()}
    replace(toy, sides=damaged).save(root / "damaged")
    huge = {path: (down * 1e19, up * 1e19) for path, (down, up) in toy.sides.items()}
    replace(toy, sides=huge).save(root / "huge")
    assert "it is for another model" in talk.change("x", "narrow")
    assert "NaN or infinite: it is damaged" in talk.change("x", "damaged")
    assert "with what it adds logits are NaN or infinite" in talk.change("x", "huge")
    assert talk.editions == []
    assert talk.change("x", "a") == ""
    assert said(talk.run(ask("1", talk.number("x")))[0])


def test_a_mixture_takes_one_up_if_it_changes_nothing_by_which_experts_are_gated(tmp_path: Path) -> None:
    model = save_model("qwen2_moe", tmp_path / "model")
    shared = ("q_proj", "shared_expert.up_proj", "shared_expert.down_proj")
    adapters = {"shared": toy_adapter(model, shared), "gate": toy_adapter(model, ("shared_expert_gate",))}
    for name, each in adapters.items():
        each.save(tmp_path / "allowed" / name)
    wanted = generate(adapters["shared"].merged(model), PROMPTS[1], TOKENS, eos_token_id=NEVER)
    session = Session(configured(tmp_path))
    talk = Talk(session)
    assert session.info.level == "fused"
    assert "states read or latents multiplied: merge it" in talk.change("gate", "gate")
    assert talk.change("shared", "shared") == ""
    (outputs,) = talk.run(ask("shared", talk.number("shared")))
    assert [each.token_id for each in outputs] == wanted
    session.close()


def test_more_than_its_memory_is_refused_until_another_has_gone(place: Path) -> None:
    given = configured(place)
    given = replace(given, model=replace(given.model, adapter_bytes=held(place, "a") + held(place, "b")))
    session = Session(given)
    talk = Talk(session)
    assert [talk.change(name, name) for name in "ab"] == ["", ""]
    assert "--lora-memory" in talk.change("c", "a")
    assert talk.change("a", None) == ""
    assert talk.change("c", "a") == ""
    session.close()


def held(place: Path, name: str) -> int:
    return allowed_files(name, name, str(place / "allowed")).nbytes


def test_the_plan_keeps_their_memory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []

    def note(given: EngineConfig, demand: Demand, machine: Machine) -> Plan:
        planned.append(demand.weights_bytes)
        return make_plan(given, demand, machine)

    monkeypatch.setattr("inference.engine.engine.make_plan", note)
    with_them = configured(place)
    for given in (with_them, replace(with_them, model=replace(with_them.model, adapter_directory=None))):
        Session(given).close()
    assert planned[0] - planned[1] == with_them.model.adapter_bytes


def test_those_that_an_engine_before_had_are_loaded_again_and_what_has_gone_is_left_out(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = configured(place, "a")
    session = Session(replace(given, model=replace(given.model, kept_adapters={"x": "b", "gone": "nowhere"})))
    assert list(session.info.adapters) == ["a", "x"]
    assert (
        "The adapter gone, which was loaded before, is gone: `lora_path` must be a directory" in caplog.text
    )
    talk = Talk(session)
    found = said(talk.run(ask("x", session.info.adapters["x"]))[0])
    assert talk.change("b", "b") == ""
    assert said(talk.run(ask("b", talk.number("b")))[0]) == found
    session.close()


def test_an_engine_that_was_not_started_for_it_says_so(place: Path) -> None:
    given = configured(place)
    session = Session(replace(given, model=replace(given.model, adapter_directory=None)))
    assert "start it with --lora-directory" in Talk(session).change("a", "a")
    session.close()


def test_an_engine_that_ends_answers_who_waits(place: Path) -> None:
    session = Session(configured(place))
    talk = Talk(session)
    session.core.stop()
    assert talk.change("a", "a") == "The engine has stopped"


@pytest.mark.parametrize(
    ("family", "options", "why"),
    [
        ("gpt_neox_japanese", {}, "they need the level fused"),
        ("llama", {"native_kernels": False}, "they need the level fused"),
        ("llama", {"device_path": True}, "GPUs, take none"),
        ("t5", {}, "models with an encoder"),
    ],
)
def test_what_takes_none_is_refused_at_the_start(
    family: str, options: dict[str, bool], why: str, tmp_path: Path
) -> None:
    save_model(family, tmp_path / "model")
    (tmp_path / "allowed").mkdir()
    native, device_path = options.get("native_kernels", True), options.get("device_path", False)
    given = replace(configured(tmp_path), native_kernels=native)
    with pytest.raises(ModelUnavailable, match=f"{why}.*; start without --lora-directory"):
        Session(given, device_path=device_path)
