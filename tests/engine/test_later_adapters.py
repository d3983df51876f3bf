"""Adapters that come while the engine runs compute what they compute from the start, and disturb nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from inference.adapters import AdapterChange, AdapterChanged, AdapterEdition
from inference.config import EngineConfig
from inference.types import CoreOutput, CoreRequest, Frame
from tests.engine.adapters import toy_adapter
from tests.engine.cores import SECONDS, Heard, Session, config, request
from tests.engine.models import VOCABULARY, generate, prompts, save_model

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
    from tests.engine.models import make_model

    model = make_model("llama")
    assert talk.change("b", str(place / "allowed" / "b")) == ""
    wanted = [
        generate(toy_adapter(model, rank=5, seed=1).merged(model), prompt, TOKENS, eos_token_id=NEVER)
        for prompt in PROMPTS
    ]
    found = talk.run(*(ask(f"{at}", talk.number("b"), at) for at in range(len(PROMPTS))))
    assert [[each.token_id for each in outputs] for outputs in found] == wanted
