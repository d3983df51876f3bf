from __future__ import annotations

import threading
import time
from datetime import timedelta

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.distributed import Store, Work  # noqa: E402

from inference.kernels.native import Library, open_library  # noqa: E402
from inference.kernels.native_exchange import PART_BYTES  # noqa: E402
from inference.models.share import Share  # noqa: E402
from inference.shards import net_group  # noqa: E402
from inference.shards.group import Group, ShardLost  # noqa: E402
from tests.unit.inference.shards.groups import together  # noqa: E402

pytestmark = pytest.mark.skipif(open_library() is None, reason="the extension isn't built")
KINDS = ("local", "net")
LONG = PART_BYTES // 4 + 1000  # numbers, more than one turn takes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 3])
def test_all_have_what_each_has(kind: str, count: int) -> None:
    def work(group: Group, _: Library) -> list[Tensor]:
        rank = group.share.rank
        return [group.join(torch.full((2, 3), rank)), group.join(torch.arange(LONG) + rank)]

    for short, long in together(count, work, kind):
        assert torch.equal(short, torch.arange(count)[:, None, None].expand(count, 2, 3))
        assert torch.equal(long, torch.arange(LONG) + torch.arange(count)[:, None])


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_alone_has_what_is_collected(kind: str) -> None:
    def work(group: Group, _: Library) -> Tensor | None:
        return group.collect(torch.full((4, LONG // 2), float(group.share.rank)))

    first, *others = together(3, work, kind)
    assert first is not None
    assert torch.equal(first, torch.arange(3.0)[:, None, None].expand(3, 4, LONG // 2))
    assert others == [None, None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 512, PART_BYTES // 8 + 3])
def test_the_others_hear_what_the_first_tells(kind: str, size: int) -> None:
    def work(group: Group, library: Library) -> list[int]:
        words = np.arange(size) if group.share.rank == 0 else np.zeros(size, dtype=np.int64)
        for _ in range(3):
            group.tell(words)
        return words.tolist()

    assert together(3, work, kind) == [list(range(size))] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_who_goes_on_alone_hears_that_another_is_lost_and_goes_on_hearing_it(kind: str) -> None:
    def work(group: Group, library: Library) -> list[str]:
        group.join(torch.zeros(1))
        if group.share.rank:
            group.leave()
            return []
        said = []
        for _ in range(2):
            with pytest.raises(ShardLost) as caught:
                group.join(torch.zeros(1))
            said.append(str(caught.value))
        assert group.lost is not None
        return said

    first, _ = together(2, work, kind)
    assert len(set(first)) == 1
    assert first[0].startswith("another shard of the model was lost")


def test_on_several_machines_who_is_late_in_a_step_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_group, "_LATE_SECONDS", 0.2)
    monkeypatch.setattr(net_group, "_LOOK", timedelta(seconds=0.05))
    told = threading.Event()

    def work(group: Group, library: Library) -> str:
        group.join(torch.zeros(1))
        group.serve()
        words = np.zeros(1, dtype=np.int64)
        if group.share.rank:
            group.tell(words)  # for which it waits, however late it comes
            told.wait(10)
            return ""
        time.sleep(0.5)
        group.tell(words)
        with pytest.raises(ShardLost, match=r"more than 0\.2 s late") as caught:
            group.join(torch.zeros(1))
        told.set()
        return str(caught.value)

    assert together(2, work, "net")[0]


def test_however_late_another_machine_has_the_model_all_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_group, "_MEET", timedelta(seconds=0.5))
    at_once = net_group.NetGroup.__init__

    def late(group: net_group.NetGroup, store: Store, share: Share, address: str) -> None:
        time.sleep((1.5, 0, 1.4)[share.rank])  # the first one knows when the others are about to come
        at_once(group, store, share, address)

    monkeypatch.setattr(net_group.NetGroup, "__init__", late)
    assert together(3, lambda group, _: group.share.rank, "net") == [0, 1, 2]


def test_what_ends_just_after_a_look_at_it_is_no_loss() -> None:
    class Late(Work):
        over = False

        def wait(self, timeout: timedelta = net_group._LOOK) -> bool:
            if not self.over:
                self.over = True
                raise RuntimeError("Operation timed out!")
            return True

        def is_completed(self) -> bool:
            return self.over

    def work(group: Group, _: Library) -> None:
        assert isinstance(group, net_group.NetGroup)
        group._do(Late)
        assert group.lost is None

    together(2, work, "net")


def test_the_first_reason_is_kept() -> None:
    def work(group: Group, _: Library) -> list[str]:
        return [str(group.lose(MemoryError("of the first"))), str(group.lose(ValueError("of the second")))]

    expected = "a shard of the model has failed: MemoryError: of the first"
    assert together(2, work) == [[expected, expected]] * 2
