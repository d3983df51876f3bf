"""The rows of images: held as long as somebody needs them, and no more memory than there may be."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from inference.sequences.sight import ImageRows  # noqa: E402
from inference.vision.store import ImageStore, Stored  # noqa: E402

ROWS = 8
SIZE = ROWS * 4 * 4 + 8 * ROWS  # bytes of one: rows of four float32, and the tokens that stand for them


def stored() -> Stored:
    rows = torch.zeros(ROWS, 4)
    return Stored(tuple(range(ROWS)), ImageRows(rows, rows, {}))


def test_image_is_found_again_and_takes_its_size_once() -> None:
    store, image = ImageStore(), stored()
    assert store.hold(b"a") is None
    assert store.put(b"a", image)
    assert store.hold(b"a") is image
    assert (store.size, store.held) == (SIZE, 2)
    store.release([b"a", b"a"])
    assert (store.size, store.held) == (SIZE, 0)
    assert store.hold(b"a") is image


def test_image_that_was_used_longest_ago_goes_first() -> None:
    store = ImageStore(2 * SIZE)
    for key in (b"a", b"b"):
        store.put(key, stored())
    store.release([b"a", b"b"])
    store.hold(b"a")
    store.release([b"a"])
    store.put(b"c", stored())
    assert store.hold(b"b") is None
    assert store.hold(b"a") is not None
    assert store.size == 2 * SIZE


def test_without_keeping_an_image_goes_with_its_last_holder() -> None:
    store = ImageStore(keeps=False)
    store.put(b"a", stored())
    store.hold(b"a")
    store.release([b"a"])
    assert store.size == SIZE
    store.release([b"a"])
    assert store.size == 0
    assert store.hold(b"a") is None


def test_who_needs_room_waits_until_somebody_lets_go() -> None:
    store = ImageStore(SIZE)
    store.put(b"a", stored())
    made: list[bool] = []
    waiting = threading.Thread(target=lambda: made.append(store.put(b"b", stored())))
    waiting.start()
    waiting.join(0.05)
    assert made == []
    store.release([b"a"])
    waiting.join(10)
    assert made == [True]
    assert store.size == SIZE
    assert store.hold(b"a") is None


def test_who_is_gone_does_not_wait_for_room_any_longer() -> None:
    store, wanted = ImageStore(SIZE), [True]
    store.put(b"a", stored())
    made: list[bool] = []
    waiting = threading.Thread(target=lambda: made.append(store.put(b"b", stored(), lambda: wanted[0])))
    waiting.start()
    waiting.join(0.05)
    assert made == []
    wanted[0] = False
    store.release([])
    waiting.join(10)
    assert made == [False]
    assert (store.size, store.held) == (SIZE, 1)


def test_closing_lets_nobody_wait() -> None:
    store = ImageStore(SIZE)
    store.put(b"a", stored())
    made: list[bool] = []
    waiting = threading.Thread(target=lambda: made.append(store.put(b"b", stored())))
    waiting.start()
    store.close()
    waiting.join(10)
    assert made == [False]
