"""Both sides' bookkeeping together: what a core says reaches whom it is for, unchanged."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.ipc.framing import FrameFault, pack, unpack
from inference.ipc.messages import FROM_ENGINE, Batch, Failed, More
from inference.process.routing import Numbers, Routes
from inference.step_stats import StepStats
from inference.types import CoreFailure, CoreOutput, FinishReason, Frame, Looked
from tests.unit.inference_process.outputs import STATS, outputs

PROCESSES = ("one", "two", "three")
IDS = ("a", "b", "c", "d")
CORE_IDS = [f"{each}@{process}" for process in PROCESSES for each in IDS]
Said = CoreOutput | CoreFailure


class Wire:
    """Processes whose requests have the same ids, and an engine that knows them apart."""

    def __init__(self) -> None:
        self.routes: Routes[str] = Routes()
        self.numbers = {process: Numbers() for process in PROCESSES}
        for process in PROCESSES:
            for each in IDS:
                self.routes.add(process, self.numbers[process].add(each), f"{each}@{process}")

    def send(self, frame: Frame) -> dict[str, Frame]:
        sent = {process: pack(batch) for process, batch in self.routes.split(frame).items()}
        return {each: self.numbers[each].frame(unpack(FROM_ENGINE, data[4:])) for each, data in sent.items()}


def ends(output: Said) -> bool:
    return isinstance(output, CoreFailure) or output.finish is not None


def renamed(output: Said, name: str) -> Said:
    if isinstance(output, CoreFailure):
        return CoreFailure(name, output.message, output.own)
    return msgspec.structs.replace(output, id=name)


def expected(frames: list[Frame]) -> dict[str, list[Said]]:
    """Return what each request hears: everything to its end, and nothing after it."""
    heard: dict[str, list[Said]] = defaultdict(list)
    for output in (output for frame in frames for output in frame.outputs):
        if not any(map(ends, heard[output.id])):
            heard[output.id].append(output)
    return heard


def one_each(said: list[Said]) -> Frame:
    """Return a step's frame, in which no request is mentioned twice."""
    return Frame(tuple({output.id: output for output in said}.values()))


@given(st.lists(st.lists(outputs(st.sampled_from(CORE_IDS)), max_size=20).map(one_each), max_size=5))
def test_everyone_hears_of_its_own_requests_all_that_was_said_until_their_end(frames: list[Frame]) -> None:
    wire = Wire()
    heard: dict[str, list[Said]] = defaultdict(list)
    for frame in frames:
        for process, received in wire.send(frame).items():
            for output in received.outputs:
                assert output.id in IDS
                core_id = f"{output.id}@{process}"
                heard[core_id].append(renamed(output, core_id))
    assert {key: said for key, said in expected(frames).items() if said} == _comparable(frames, heard)


def _comparable(frames: list[Frame], heard: dict[str, list[Said]]) -> dict[str, list[Said]]:
    """Undo the one thing that is left out: when a request started is not said again with every token."""
    wanted = expected(frames)
    whole: dict[str, list[Said]] = {}
    for key, said in heard.items():
        pairs = enumerate(zip(said, wanted[key], strict=True))
        whole[key] = [_filled(mine, theirs, first=at == 0) for at, (mine, theirs) in pairs]
    return whole


def _filled(mine: Said, theirs: Said, *, first: bool) -> Said:
    if first or isinstance(mine, CoreFailure) or said_fully(theirs):
        return mine
    return _stripped_as(mine, theirs)


def said_fully(output: Said) -> bool:
    return isinstance(output, CoreFailure) or bool(
        output.finish is not None or output.top or output.prompt_logprobs is not None
    )


def _stripped_as(mine: CoreOutput, theirs: Said) -> CoreOutput:
    assert isinstance(theirs, CoreOutput)
    assert (mine.started, mine.cached_tokens, mine.prompt_top) == (0.0, 0, None)
    return msgspec.structs.replace(
        mine, started=theirs.started, cached_tokens=theirs.cached_tokens, prompt_top=theirs.prompt_top
    )


@given(STATS)
def test_numbers_of_a_step_cross_unchanged(stats: StepStats) -> None:
    data = pack(Batch(stats=stats))
    assert Numbers().frame(unpack(FROM_ENGINE, data[4:])) == Frame((), stats)


def test_numbers_are_never_used_twice() -> None:
    numbers = Numbers()
    first = numbers.add("a")
    assert numbers.remove("a") == first
    assert numbers.remove("a") is None
    assert numbers.add("a") != first
    stale = Batch([first], [5], [-0.5], failures=[Failed(first, "late")])
    assert numbers.frame(stale) == Frame(())


def test_ended_and_aborted_requests_leave_nothing_behind() -> None:
    wire = Wire()
    ended = Frame(tuple(CoreOutput(each, 1, 0.0, finish=FinishReason.EOS) for each in CORE_IDS[:2]))
    wire.send(Frame((*ended.outputs, CoreFailure(CORE_IDS[2], "no"))))
    assert (len(wire.routes), len(wire.numbers["one"])) == (9, 1)
    number = wire.numbers["one"].remove("d")
    assert number is not None
    assert wire.routes.remove("one", number) == "d@one"
    assert wire.routes.remove("one", number) is None
    assert sorted(wire.routes.drop("two")) == sorted(CORE_IDS[4:8])
    assert wire.numbers["two"].drop() == IDS
    assert (len(wire.routes), len(wire.numbers["two"])) == (4, 0)
    assert wire.send(Frame((CoreOutput("a@two", 1, 0.0),))) == {}


def test_number_in_use_is_a_fault() -> None:
    routes: Routes[str] = Routes()
    routes.add("one", 5, "x")
    routes.add("two", 5, "y")
    with pytest.raises(FrameFault, match="number 5 is in use"):
        routes.add("one", 5, "z")


@pytest.mark.parametrize("batch", [Batch([0], [1], []), Batch([0], [], [-0.5]), Batch([], [1], [-0.5])])
def test_columns_of_different_lengths_are_a_fault(batch: Batch) -> None:
    with pytest.raises(FrameFault, match="differ in length"):
        Numbers().frame(batch)


def test_what_is_said_besides_a_token_belongs_to_its_row() -> None:
    numbers = Numbers()
    rows = [numbers.add(each) for each in IDS]
    more = More(2, ((9, -1.0),), FinishReason.LENGTH, 3.5, 16, None, None)
    frame = numbers.frame(Batch(rows, [1, 2, 3, 4], [0.0] * 4, [more]))
    wanted = CoreOutput("c", 3, 0.0, ((9, -1.0),), FinishReason.LENGTH, 3.5, 16)
    assert frame.outputs == (
        CoreOutput("a", 1, 0.0),
        CoreOutput("b", 2, 0.0),
        wanted,
        CoreOutput("d", 4, 0.0),
    )


def test_what_became_of_images_reaches_whose_they_are() -> None:
    wire = Wire()
    good, bad = (
        Looked("a@one", ((1, 2), (3,))),
        Looked("b@two", message="no", invalid=True, which=2, member="a"),
    )
    heard = wire.send(Frame((), looked=(good, bad, Looked("gone", ((1,),)))))
    assert heard["one"].looked == (Looked("a", good.images),)
    assert heard["two"].looked == (Looked("b", message="no", invalid=True, which=2, member="a"),)
    assert "a@one" in wire.routes._routes
    assert "b@two" not in wire.routes._routes  # it has ended with that
    assert wire.numbers["two"].remove("b") is None


def test_request_that_comes_in_two_parts_has_one_number() -> None:
    routes: Routes[str] = Routes()
    numbers = Numbers()
    number = numbers.add("a")
    routes.add("one", number, "a@one", early=True)
    assert numbers.add("a") == number
    with pytest.raises(FrameFault):
        routes.add("one", number, "a@one", early=True)
    routes.add("one", number, "a@one")
    with pytest.raises(FrameFault):
        routes.add("one", number, "a@one")
    assert routes.drop("one") == ["a@one"]
    assert not routes._early
