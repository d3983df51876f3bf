"""Grammars in the engine: what they allow at every level, and that a slow one keeps nobody waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from inference.types import FinishReason
from tests.engine.cores import SECONDS, Heard, Session, best, config, request
from tests.engine.models import EOS, VOCABULARY, generate, prompts, save_model
from tests.unit.inference.paper_grammar import PaperGrammar, PaperMatcher

PROMPTS = prompts(30, 5, 14, 41, 22, 9)
TOKENS = 40
FAMILIES = {
    "llama": best("fused", "paged+merged"),
    "gpt_neox": best("fused", "paged"),
    "xglm": "batched",
    "roformer": "sequential",
}


def rule(text: tuple[int, ...]) -> set[int]:
    """Allow a third of the tokens, another one after each; EOS now and then; the end after 33."""
    if len(text) >= 33:
        return {EOS}
    allowed = {token for token in range(3, VOCABULARY) if (token + sum(text)) % 3 == 0}
    return allowed | {EOS} if len(text) % 4 == 3 else allowed


RULE = PaperGrammar(rule, EOS)


@pytest.fixture(scope="module", params=FAMILIES)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, PreTrainedModel]:
    directory = tmp_path_factory.mktemp(request.param)
    return request.param, directory, save_model(request.param, directory)


@pytest.fixture(scope="module")
def oracle(model: tuple[str, Path, PreTrainedModel]) -> list[list[int]]:
    """Return the greedy texts of transformers' own generation that is bound by the rule."""

    def follow(prompt: tuple[int, ...]) -> list[int]:
        def allowed(batch: int, ids: list[int]) -> list[int]:
            return sorted(rule(tuple(map(int, ids[len(prompt) :]))))

        return generate(model[2], prompt, TOKENS, prefix_allowed_tokens_fn=allowed)

    return [follow(prompt) for prompt in PROMPTS]


def test_greedy_texts_are_those_of_transformers_alone_in_batches_and_preempted(
    model: tuple[str, Path, PreTrainedModel], oracle: list[list[int]]
) -> None:
    session = Session(
        config(model[1], max_batch_total_tokens=96, max_total_tokens=96, max_batch_prefill_tokens=24)
    )
    assert session.level == FAMILIES[model[0]]
    wanted = [
        request(str(index), prompt, tokens=TOKENS, grammar=RULE) for index, prompt in enumerate(PROMPTS)
    ]
    alone = [session.run([each]).tokens(each.id) for each in wanted]
    together = session.run(wanted)
    session.close()
    assert sum(stats.preempted for stats in together.stats) > 0
    assert alone == oracle
    assert [together.tokens(each.id) for each in wanted] == oracle
    assert {text[-1] for text in oracle} == {EOS}


# --- late masks -------------------------------------------------------------------------------


@pytest.fixture
def session(directory: Path) -> Iterator[Session]:
    session = Session(config(directory))
    yield session
    session.close()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()  # or a thread of the engine would wait for it as the test ends


def hear(session: Session, heard: Heard, *ids: str) -> None:
    """Take what the core says until the requests have ended."""
    while not all(heard.ended(id) for id in ids):
        heard.add(session.frames.get(timeout=SECONDS))


def park(session: Session, gate: threading.Event, *, others: int) -> Heard:
    """Return what was heard until all others have ended while one waits for its first mask."""
    slow = PaperGrammar(rule, EOS, gate)
    session.core.submit(request("slow", PROMPTS[0], tokens=TOKENS, grammar=slow))
    names = [str(index) for index in range(others)]
    for index in names:
        grammar = RULE if int(index) % 2 else None
        session.core.submit(request(index, PROMPTS[1], tokens=TOKENS, grammar=grammar, ignore_eos=True))
    session.core.start(session.frames.put)
    heard = Heard()
    hear(session, heard, *names)
    return heard


def test_others_end_while_one_waits_for_its_mask(
    session: Session, gate: threading.Event, directory: Path
) -> None:
    heard = park(session, gate, others=7)
    assert "slow" not in heard.outputs
    assert [len(heard.tokens(str(index))) for index in range(7)] == [40, 34, 40, 34, 40, 34, 40]
    gate.set()
    hear(session, heard, "slow")
    alone = session.run([request("alone", PROMPTS[0], tokens=TOKENS, grammar=RULE)])
    assert heard.tokens("slow") == alone.tokens("alone")


def test_core_sleeps_while_all_wait_for_their_masks(session: Session, gate: threading.Event) -> None:
    heard = park(session, gate, others=1)
    assert session.idle_seconds() < 0.2  # a thread that spins takes its share of two
    session.core.submit(request("new", PROMPTS[2]))  # is heard of at once
    hear(session, heard, "new")
    gate.set()
    hear(session, heard, "slow")


def test_aborted_while_it_waits_leaves_nothing_behind(session: Session, gate: threading.Event) -> None:
    park(session, gate, others=1)
    session.core.abort("slow")
    gate.set()
    after = session.run([request("after", PROMPTS[1], tokens=TOKENS, grammar=RULE)])
    assert set(after.outputs) == {"after"}
    assert (after.stats[-1].kv_tokens, after.stats[-1].running) == (0, 0)


def test_stopped_while_it_waits_is_told(session: Session, gate: threading.Event) -> None:
    heard = park(session, gate, others=1)
    stopping = threading.Thread(target=session.core.stop)
    stopping.start()
    hear(session, heard, "slow")
    gate.set()
    stopping.join(SECONDS)
    assert heard.failures == {"slow": "The engine was stopped"}
    assert not any(thread.name == "grammar-masks" for thread in threading.enumerate())


def test_grammars_that_fail_fail_their_requests_alone(session: Session) -> None:
    class NeverStarts(PaperGrammar):
        def start(self) -> PaperMatcher:
            raise RuntimeError("no way in")

    late = PaperGrammar(lambda text: {5} if len(text) < 3 else {1 // 0})
    heard = session.run(
        [
            request("late", PROMPTS[0], grammar=late),
            request("never", PROMPTS[0], grammar=NeverStarts(rule)),
            request("good", PROMPTS[1], tokens=TOKENS, grammar=RULE),
        ]
    )
    assert heard.tokens("late") == [5, 5, 5]
    assert "ZeroDivisionError" in heard.failures["late"]
    assert "no way in" in heard.failures["never"]
    assert heard.outputs["good"][-1].finish is FinishReason.EOS


def test_text_ends_with_its_grammar_where_the_model_has_no_eos(directory: Path, tmp_path: Path) -> None:
    for file in directory.iterdir():
        text = file.read_bytes()
        (tmp_path / file.name).write_bytes(text.replace(b'"eos_token_id": 2', b'"eos_token_id": null'))
    session = Session(config(tmp_path))
    assert session.info.eos_token_ids == ()
    grammar = PaperGrammar(lambda text: {5, 6} if len(text) < 4 else set())
    outputs = session.run([request("a", PROMPTS[0], grammar=grammar)]).outputs["a"]
    session.close()
    assert [output.finish for output in outputs] == [None, None, None, FinishReason.STOP]
