"""A model in shards says what it says in one piece, and tells everybody when one of them is lost."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from inference.config import EMBEDDED_MODEL
from inference.engine.engine import TorchCore
from inference.errors import ModelUnavailable
from inference.kernels.native import open_library
from inference.types import CoreRequest, LogprobsMode, Sampling
from tests.engine.cores import Heard, Session, config, request
from tests.engine.grammars import compiled, text_of
from tests.engine.models import generate, make_model, prompts, save_model
from tests.processes import children, command_line

pytestmark = pytest.mark.skipif(open_library() is None, reason="the extension isn't built")
PROMPTS = prompts(9, 40, 17, 70)
SEEDED = Sampling(sample=True, seed=7, temperature=0.9, top_k=20, frequency_penalty=0.3)


def asked() -> list[CoreRequest]:
    """Return requests of many kinds: greedy with and without log-probabilities, drawn, scoring a prompt."""
    several = [request(f"greedy-{at}", prompt) for at, prompt in enumerate(PROMPTS)]
    plain = [replace(each, id=f"plain-{each.id}", logprobs=LogprobsMode.NONE) for each in several]
    drawn = [replace(each, id=f"drawn-{each.id}", sampling=SEEDED, top_n_tokens=3) for each in several]
    prompt = replace(several[1], id="prompt", prompt_logprobs=True, prompt_top_n_tokens=2)
    return [*several, *plain, *drawn, prompt]


@pytest.fixture(scope="module")
def session(directory: Path) -> Iterator[Session]:
    session = Session(config(directory, shards=2, max_batch_prefill_tokens=24, max_batch_total_tokens=512))
    yield session
    session.close()


def test_texts_are_those_of_transformers(session: Session, directory: Path) -> None:
    heard = session.run([request(str(at), prompt) for at, prompt in enumerate(PROMPTS)])
    model = make_model("llama")
    for at, prompt in enumerate(PROMPTS):
        assert heard.tokens(str(at)) == generate(model, prompt, 20)


def test_texts_are_those_of_one_piece(session: Session, directory: Path) -> None:
    whole = Session(config(directory, max_batch_prefill_tokens=24, max_batch_total_tokens=512))
    expected, heard = whole.run(asked()), session.run(asked())
    whole.close()
    for each in asked():
        assert heard.tokens(each.id) == expected.tokens(each.id), each.id
        pairs = zip(heard.outputs[each.id], expected.outputs[each.id], strict=True)
        for mine, theirs in pairs:
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]
    assert heard.outputs["prompt"][0].prompt_logprobs == pytest.approx(
        expected.outputs["prompt"][0].prompt_logprobs, abs=1e-4
    )


def test_a_request_has_the_same_bits_alone_and_beside_others(session: Session) -> None:
    together = session.run(asked())
    for each in asked():
        alone = session.run([replace(each, id="alone", salt=each.id)])
        if each.logprobs is LogprobsMode.NONE:
            assert alone.tokens("alone") == together.tokens(each.id)
        else:
            assert _bits(alone, "alone") == _bits(together, each.id), each.id


def test_preempted_requests_say_what_they_would_have_said(directory: Path, session: Session) -> None:
    growing = [request(str(at), prompt[:8], tokens=60, ignore_eos=True) for at, prompt in enumerate(PROMPTS)]
    small = Session(config(directory, shards=2, max_batch_total_tokens=144))
    heard, expected = small.run(growing), session.run(growing)
    small.close()
    assert sum(each.preempted for each in heard.stats) > 0
    assert [heard.tokens(each.id) for each in growing] == [expected.tokens(each.id) for each in growing]


def test_tokens_may_be_guessed_ahead(directory: Path) -> None:
    prompt = tuple(3 + at % 7 for at in range(40))
    said = []
    for guesses in (0, 4):
        guessing = Session(config(directory, shards=2, speculate=guesses))
        heard = guessing.run([request("r", prompt, tokens=40, ignore_eos=True)])
        guessing.close()
        assert bool(guesses) == any(each.guessed for each in heard.stats)
        said.append(heard.tokens("r"))
    assert said[0] == said[1]


def test_what_grammars_allow_is_said() -> None:
    embedded = Session(config(EMBEDDED_MODEL, shards=2))
    grammar = compiled({"type": "object", "properties": {"a": {"enum": [12, 7]}}, "required": ["a"]})
    heard = embedded.run([request("r", PROMPTS[0], tokens=40, grammar=grammar)])
    embedded.close()
    assert text_of(heard.tokens("r")[:-1]).replace(" ", "") in ('{"a":12}', '{"a":7}')


@pytest.mark.parametrize("count", [2, 4])
def test_shards_may_come_from_another_machine(directory: Path, tmp_path: Path, count: int) -> None:
    """As far as processes are on two that have no more than a port in common."""
    there = shutil.copytree(directory, tmp_path / "there")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "handlers", "shard", "--model-id", str(there)]
    other = subprocess.Popen([*command, "--master-addr", "127.0.0.1", "--master-port", str(port)])
    try:
        given = config(directory, shards=count, remote_shards=1, shard_port=port)
        session = Session(replace(given, shard_address="127.0.0.1"))
        heard = session.run(asked())
    finally:
        other.terminate()
    model = make_model("llama")
    for at, prompt in enumerate(PROMPTS):
        assert heard.tokens(f"greedy-{at}") == generate(model, prompt, 20)
    place = f"--master-addr 127.0.0.1 --master-port {port}"
    assert session.progress[0] == f"Waiting for 1 shard of other machines: parley shard {place}"
    session.core.join()  # as one has ended
    session.close()
    assert other.wait(10) == 0


def test_where_the_server_ends_in_order_the_other_machine_says_so(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "handlers", "shard", "--model-id", str(directory)]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            given = config(directory, shards=2, remote_shards=1, shard_port=port)
            session = Session(replace(given, shard_address="127.0.0.1"))
            session.run([request("r", PROMPTS[0])])
            session.close()
            assert other.stdout is not None
            said = next(line for line in other.stdout if "ended" in line)
        finally:
            other.terminate()
    assert " INFO " in said
    assert "has ended in order, and the shard with it" in said


@pytest.mark.parametrize("when", ["idle", "busy"])
def test_all_hear_of_a_shard_that_is_lost(directory: Path, when: str) -> None:
    before = _children()
    session = Session(config(directory, shards=2))
    heard = Heard()
    if when == "busy":
        session.submit(request("r", PROMPTS[0], tokens=200, ignore_eos=True))
        session.listen(heard)
    else:
        session.core.start(session.frames.put)
    (shard,) = _children() - before
    os.kill(shard, signal.SIGKILL)
    session.core.join()
    session.submit(request("late", PROMPTS[0]))
    while not (heard.ended("late") and (when == "idle" or heard.ended("r"))):
        heard.add(session.frames.get(timeout=10))
    if when == "busy":
        assert "shard" in heard.failures["r"]
    assert not session.core.alive
    session.close()
    assert _children() == before


def test_a_model_that_cannot_be_divided_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    save_model("bitnet", tmp_path)
    children, threads = _children(), set(threading.enumerate())
    core = TorchCore(config(tmp_path, shards=2))
    with pytest.raises(ModelUnavailable, match=r"over 2 shards.*without --num-shard"):
        core.load(print)
    assert _children() <= children  # those of other tests may end meanwhile
    assert set(threading.enumerate()) <= threads


def test_a_mixture_of_experts_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    save_model("qwen3_moe", tmp_path)
    children = _children()
    with pytest.raises(ModelUnavailable, match=r"mixture of experts, which can't be divided.*--num-shard 2"):
        TorchCore(config(tmp_path, shards=2)).load(print)
    assert _children() <= children


def test_without_native_kernels_there_are_no_shards(directory: Path) -> None:
    with pytest.raises(ModelUnavailable, match="without the native kernels"):
        TorchCore(config(directory, shards=2, native_kernels=False)).load(print)


def test_what_a_shard_fails_on_is_told(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.shards.leader.PROGRAM", ("-c", "raise SystemExit(1)"))
    with pytest.raises(ModelUnavailable, match="Shard 1 of the model was lost: it has ended"):
        TorchCore(config(directory, shards=2)).load(print)


def _children() -> set[int]:
    """Return the processes of shards that this one has started."""
    return {each for each in children(os.getpid()) if "inference.process.shard" in command_line(each)}


def _bits(heard: Heard, id: str) -> list[tuple[int, float, tuple[tuple[int, float], ...]]]:
    return [(each.token_id, each.logprob, each.top) for each in heard.outputs[id]]
