"""What the first shard hears of others, which are small programs here."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from inference.config import EngineConfig  # noqa: E402
from inference.errors import ModelUnavailable  # noqa: E402
from inference.kernels.native import open_library  # noqa: E402
from inference.shards import leader  # noqa: E402
from inference.shards.group import ShardLost  # noqa: E402
from inference.shards.leader import Shards  # noqa: E402

pytestmark = pytest.mark.skipif(open_library() is None, reason="the extension isn't built")
ROOT = Path(__file__).parents[4]
SHARD = f"""
import logging, os, socket, sys, time
sys.path.insert(0, {str(ROOT)!r})
from inference.ipc.control import Control, send_logs
from inference.ipc.messages import Unavailable
from inference.shards.messages import FROM_FIRST, Present
line = Control(socket.socket(fileno=int(sys.argv[1])))
words = line.receive(FROM_FIRST)
task = next(words)
send_logs(line, task.log_levels)
"""


@pytest.fixture
def doing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what sets the deed of shards that start from then on."""
    return lambda deed: monkeypatch.setattr(leader, "PROGRAM", ("-c", SHARD + deed))


def started(count: int = 2) -> tuple[Shards, list[str], threading.Event]:
    lost: list[str] = []
    heard = threading.Event()

    def lose(why: str) -> None:
        lost.append(why)
        heard.set()

    return Shards(EngineConfig(shards=count), 1, lose), lost, heard


def meet(shards: Shards) -> None:
    shards.meet(open_library(threads=1), print).join(torch.zeros(1))


def test_a_shard_may_say_much_before_it_says_why_it_ends(
    doing: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    doing("[logging.warning('word %d', n) for n in range(3)]; line.send(Unavailable('it has no room'))")
    shards, lost, heard = started()
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(ModelUnavailable, match=r"Shard 1 .*no room"),
    ):
        meet(shards)
    assert heard.wait(10)
    shards.close()
    assert [f"shard 1: word {number}" in caplog.text for number in range(3)] == [True] * 3
    assert len(lost) == 1


@pytest.mark.parametrize("deed", ["line.send(Present())", "line.send(Present()); os._exit(1)"])
def test_one_that_is_lost_while_the_others_load_is_told_of(doing: Callable[[str], None], deed: str) -> None:
    doing(deed)
    shards, lost, heard = started()
    with pytest.raises((ModelUnavailable, ShardLost)):
        meet(shards)
    assert heard.wait(10)
    assert shards.why() == lost[0] == "Shard 1 of the model was lost: it has ended"
    shards.close()


def test_what_can_not_be_read_is_a_loss_too(doing: Callable[[str], None]) -> None:
    doing("line.socket.sendall(bytes([0, 0, 0, 1, 7])); time.sleep(60)")
    shards, lost, heard = started()
    assert heard.wait(20)
    assert "what it says can't be read" in lost[0]
    shards.close()


@pytest.mark.parametrize("lost", [False, True])
def test_an_end_in_order_is_told_and_that_by_a_loss_is_none(
    doing: Callable[[str], None], tmp_path: Path, lost: bool
) -> None:
    heard = f"open({str(tmp_path)!r} + f'/{{task.rank}}', 'w').write(repr([*words]))"
    doing(f"time.sleep({lost} and task.rank == 1 and 60); {heard}")
    shards, _, gone = started(3)
    if lost:
        shards._processes[0].kill()
        assert gone.wait(10)
    shards.close()
    said = {each.name: each.read_text() for each in tmp_path.iterdir()}
    assert said == ({"2": "[]"} if lost else {"1": "[Dismissed()]", "2": "[Dismissed()]"})


def test_who_is_closed_waits_no_more_and_is_told_of_no_loss(doing: Callable[[str], None]) -> None:
    doing("[None for _ in words]")
    shards, lost, _ = started(3)
    closing = threading.Timer(0.3, shards.close)
    closing.start()
    with pytest.raises(ModelUnavailable, match="was stopped"):
        meet(shards)
    closing.join()
    shards.close()
    assert lost == []


def test_a_program_that_can_not_be_started_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere")
    with pytest.raises(ModelUnavailable, match=r"shards can't be started: .*nowhere"):
        started()
