"""Grammars compiled in processes of their own: what ends one of these ends nothing else."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from inference.errors import GenerationFailed
from inference.grammar import forked, forking
from inference.grammar.build import build
from inference.grammar.fault import GrammarFault
from inference.grammar.forked import ForkedMaker
from inference.grammar.late import LateGrammar
from inference.grammar.threads import start_threads, yield_to_others
from inference.grammar_limits import NICENESS, GrammarLimits
from inference.ipc.grammar_tokens import GrammarTokens
from inference.types import Grammar, GrammarKind
from tests.processes import children, gone, read
from tests.unit.inference.grammar.vocabularies import END, LIMITS, SPECIAL, STOP, TOKENS, VOCABULARY, follows

FAULTY = "tests.unit.inference.grammar.faulty_forking"
GRAMMAR_TOKENS = GrammarTokens(tuple(TOKENS), (SPECIAL,), (END, STOP))
SECONDS = 60.0


@pytest.fixture(scope="module")
def maker() -> Iterator[ForkedMaker]:
    maker = ForkedMaker(GRAMMAR_TOKENS)
    yield maker
    maker.close()


@pytest.fixture(scope="module")
def faulty() -> Iterator[ForkedMaker]:
    maker = ForkedMaker(GRAMMAR_TOKENS, FAULTY)
    yield maker
    maker.close()


def lark(source: str) -> Grammar:
    return Grammar(kind=GrammarKind.LARK, source=source)


def made(maker: ForkedMaker, source: str = 'start: "ok"', limits: GrammarLimits = LIMITS) -> LateGrammar:
    return maker.make(lark(source), limits, lambda: None)


def forker(maker: ForkedMaker) -> int:
    assert maker._forker is not None
    return maker._forker.process.pid


def workers(maker: ForkedMaker) -> list[int]:
    return [process for process in children(forker(maker)) if not gone(process)]


def until(met: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("kind", "source", "right", "wrong"),
    [
        (GrammarKind.REGEX, "[0-9]+", "12", "a"),
        (GrammarKind.JSON_SCHEMA, '{"type": "integer"}', "-7", '"7"'),
        (GrammarKind.LARK, 'start: "a" | "bc"', "bc", "ab"),
    ],
)
def test_each_kind_comes_back_as_it_is_compiled_here(
    maker: ForkedMaker, kind: GrammarKind, source: str, right: str, wrong: str
) -> None:
    grammar = Grammar(kind=kind, source=source)
    back = maker.make(grammar, LIMITS, lambda: None)
    assert back.source.lark == build(VOCABULARY, grammar, LIMITS).source
    assert back.source.limits == LIMITS
    assert 0 < back.source.seconds < SECONDS
    assert follows(back.compiled(), right)
    assert not follows(back.compiled(), wrong)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (GrammarKind.JSON_SCHEMA, '{"items": {"not": {"type": "null"}}}'),
        (GrammarKind.JSON_SCHEMA, '{"type": "string", "minLength": 9, "maxLength": 3}'),
        (GrammarKind.REGEX, "("),
        (GrammarKind.LARK, "start: nothing"),
    ],
)
def test_what_is_wrong_is_told_in_the_same_words(maker: ForkedMaker, kind: GrammarKind, source: str) -> None:
    grammar = Grammar(kind=kind, source=source)
    with pytest.raises(GrammarFault) as here:
        build(VOCABULARY, grammar, LIMITS)
    with pytest.raises(GrammarFault) as there:
        maker.make(grammar, LIMITS, lambda: None)
    told = [(each.value.reason, each.value.pointer, each.value.label) for each in (here, there)]
    assert told[0] == told[1]


@pytest.mark.parametrize("source", ["segfault", "abort", "memory"])
def test_a_grammar_that_ends_its_process_is_refused_and_nothing_else_is(
    faulty: ForkedMaker, source: str
) -> None:
    made(faulty)
    forks_from = forker(faulty)
    with pytest.raises(GrammarFault, match=r"too much memory\. Send a simpler one"):
        made(faulty, source)
    made(faulty)
    assert forker(faulty) == forks_from


@pytest.mark.parametrize("source", ["sleep", "spin"])
def test_a_grammar_that_takes_too_long_is_ended(faulty: ForkedMaker, source: str) -> None:
    made(faulty)
    with pytest.raises(GrammarFault, match=r"takes more than 0\.2 seconds. Shorten it"):
        made(faulty, source, GrammarLimits(seconds=0.2))
    made(faulty)
    until(lambda: len(workers(faulty)) == 1)


def test_a_panic_is_a_failure_of_the_servers(faulty: ForkedMaker) -> None:
    with pytest.raises(GenerationFailed, match="The grammar's compiler failed: Panic"):
        made(faulty, "panic")


def test_no_grammar_sees_the_servers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of the server's")
    maker = ForkedMaker(GRAMMAR_TOKENS, FAULTY)
    with pytest.raises(GenerationFailed, match="KeyError"):
        made(maker, "environment")
    maker.close()


def test_one_grammar_compiles_while_another_does(faulty: ForkedMaker) -> None:
    begun = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(faulty.make, lark("sleep"), GrammarLimits(seconds=2), begun.set)
        assert begun.wait(SECONDS)
        made(faulty)
        assert not slow.done()
        with pytest.raises(GrammarFault, match="takes more than 2 seconds"):
            slow.result()


def test_the_process_that_forks_is_started_again(maker: ForkedMaker) -> None:
    made(maker)
    ended = forker(maker)
    for process in (*children(ended), ended):
        os.kill(process, signal.SIGKILL)
    made(maker)
    assert forker(maker) != ended


def test_signals_that_tell_the_server_to_end_leave_it_alone(maker: ForkedMaker) -> None:
    made(maker)
    forks_from = forker(maker)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(forks_from, number)
    made(maker)
    assert forker(maker) == forks_from


def test_it_ends_with_whoever_started_it() -> None:
    maker = ForkedMaker(GRAMMAR_TOKENS)
    made(maker)
    process = forker(maker)
    (worker,) = workers(maker)
    assert maker._forker is not None
    for held in (maker._forker._control, *maker._idle):
        held.close()  # as all is that a process holds, when it ends
    until(lambda: gone(process) and gone(worker))
    maker.close()


def test_a_process_that_can_not_be_started_is_a_failure_of_the_servers() -> None:
    maker = ForkedMaker(GRAMMAR_TOKENS, "tests.no_such_module")
    with pytest.raises(GenerationFailed, match="can't be started"):
        made(maker)
    maker.close()


@pytest.mark.parametrize("faults", ["no fork", "no thread"])
def test_no_process_to_be_had_is_a_failure_of_the_servers(
    faults: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", faults)  # one of few names that it is given
    maker = ForkedMaker(GRAMMAR_TOKENS, FAULTY)
    with pytest.raises(GenerationFailed, match="can't be started"):
        made(maker)
    maker.close()


def test_a_process_has_little_to_do_harm_with(maker: ForkedMaker) -> None:
    made(maker)
    (worker,) = workers(maker)
    status, limits = read(f"/proc/{worker}/stat"), read(f"/proc/{worker}/limits")
    assert int(status.rpartition(")")[2].split()[16]) == NICENESS
    assert read(f"/proc/{worker}/oom_score_adj").strip() == "1000"
    space = re.search(r"Max address space +(\d+)", limits)
    assert space is not None
    assert forking.MEMORY_BYTES < int(space[1]) < 8 * forking.MEMORY_BYTES
    assert re.search(r"Max file size +0 ", limits)


def test_the_process_starts_as_the_server_does_though_the_thread_that_asks_yields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maker, found = ForkedMaker(GRAMMAR_TOKENS), []
    usual = os.getpriority(os.PRIO_PROCESS, 0)

    def start(tokens: GrammarTokens, module: str) -> forked.Forker:
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return forker_class(tokens, module)

    forker_class = forked.Forker
    monkeypatch.setattr(forked, "Forker", start)
    with start_threads(1, "asks", yield_to_others) as threads:
        threads.submit(made, maker).result()
    assert found == [usual]
    assert os.getpriority(os.PRIO_PROCESS, workers(maker)[0]) == max(NICENESS, usual)
    maker.close()


def test_a_vocabulary_of_any_size_comes_over() -> None:
    many = tuple(b"%d!" % number for number in range(60_000))
    maker = ForkedMaker(GrammarTokens((*TOKENS, *many), (SPECIAL,), (END, STOP)))
    assert made(maker).source.seconds < SECONDS
    maker.close()


def test_closing_while_a_grammar_compiles_leaves_no_process() -> None:
    maker, begun = ForkedMaker(GRAMMAR_TOKENS, FAULTY), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(maker.make, lark("sleep"), GrammarLimits(seconds=1), begun.set)
        assert begun.wait(SECONDS)
        processes = [forker(maker), *workers(maker)]
        maker.close()
        with pytest.raises(GrammarFault, match="takes more than 1 seconds"):
            slow.result()
    until(lambda: all(map(gone, processes)))
    with pytest.raises(GenerationFailed, match="shuts down"):
        made(maker)
    assert maker._forker is None


def test_threads_that_lose_the_process_at_once_have_another_one() -> None:
    maker = ForkedMaker(GRAMMAR_TOKENS)
    made(maker)
    for _ in range(3):
        for process in (forker(maker), *workers(maker)):
            os.kill(process, signal.SIGKILL)
        with ThreadPoolExecutor(4) as threads:
            for result in [threads.submit(made, maker) for _ in range(8)]:
                result.result()
    maker.close()


def test_the_log_tells_of_a_fault_of_ours_without_words_of_the_clients(
    faulty: ForkedMaker, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(GenerationFailed, match="KeyError"):
        made(faulty, "fault")
    assert "faulty_forking.py" in caplog.text
    assert "KeyError" in caplog.text
    assert "a client's word" not in caplog.text


def test_the_log_tells_where_a_process_crashed(faulty: ForkedMaker, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(GrammarFault):
        made(faulty, "segfault")
    until(lambda: "Segmentation fault" in caplog.text)


def test_who_comes_after_a_grammar_that_left_its_process_dying_is_not_blamed(faulty: ForkedMaker) -> None:
    made(faulty, "time bomb")
    made(faulty, "bomb")  # ends a process only that has had the other


def test_a_process_that_has_nothing_to_do_and_ends_costs_no_request(maker: ForkedMaker) -> None:
    made(maker)
    (worker,) = workers(maker)
    made(maker)
    assert workers(maker) == [worker]  # it takes one after the other
    os.kill(worker, signal.SIGKILL)
    until(lambda: gone(worker))
    made(maker)
    assert workers(maker) != [worker]


def test_a_process_has_so_many_grammars_and_then_another_one_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "3 tasks")
    grammars: list[LateGrammar] = []
    forked_at: list[int] = []

    def fork(forker: forked.Forker) -> socket.socket:
        forked_at.append(len(grammars))
        return usual(forker)

    usual = forked.Forker.fork
    monkeypatch.setattr(forked.Forker, "fork", fork)
    maker = ForkedMaker(GRAMMAR_TOKENS, FAULTY)
    for _ in range(7):
        grammars.append(made(maker))
    assert forked_at == [0, 3, 6]
    maker.close()


@pytest.mark.parametrize("said", ["nonsense", "endless"])
def test_what_is_no_answer_is_no_answer(faulty: ForkedMaker, said: str) -> None:
    """A process that a grammar has taken over can say anything."""
    made(faulty)
    with pytest.raises(GrammarFault, match="its compiler failed"):
        made(faulty, said)
    made(faulty)
