from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.ipc.framing import HEADER_BYTES, FrameFault, Unframer, pack, unpack
from inference.ipc.messages import FROM_ENGINE, Abort, Batch, Progress

LINES = st.lists(st.text(max_size=300), max_size=12)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[start:stop] for start, stop in pairwise(edges)]


@given(LINES, st.lists(st.integers(0, 10_000), max_size=20))
def test_messages_come_out_as_they_went_in_however_the_stream_is_cut(
    lines: list[str], places: list[int]
) -> None:
    stream = b"".join(pack(Progress(line)) for line in lines)
    unframer = Unframer(10_000)
    found = [payload for part in cut(stream, places) for payload in unframer.feed(part)]
    assert [Progress(line) for line in lines] == [unpack(FROM_ENGINE, payload) for payload in found]


def test_a_frame_is_four_bytes_of_length_and_message_pack() -> None:
    frame = pack(Progress("x"))
    assert (frame[:4], msgspec.msgpack.decode(frame[4:])) == (b"\0\0\0\x04", [10, "x"])


def test_stream_one_byte_at_a_time() -> None:
    unframer = Unframer(100)
    found = [unframer.feed(bytes([each])) for each in pack(Progress("ab")) + pack(Progress("c"))]
    payloads = [payload for each in found for payload in each]
    assert [unpack(FROM_ENGINE, each) for each in payloads] == [Progress("ab"), Progress("c")]


@pytest.mark.parametrize("before", [b"", pack(Progress("fine"))])
def test_length_past_the_limit_is_refused_before_it_has_come(before: bytes) -> None:
    unframer = Unframer(1000)
    with pytest.raises(FrameFault, match=r"<= 1000 bytes, and this one has 1001"):
        unframer.feed(before + (1001).to_bytes(HEADER_BYTES, "big"))


@given(st.binary(max_size=200))
def test_anything_but_a_message_is_a_fault(payload: bytes) -> None:
    try:
        message = unpack(FROM_ENGINE, payload)
    except FrameFault:
        return
    assert unpack(FROM_ENGINE, pack(message)[HEADER_BYTES:]) == message


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        pack(Abort(1))[4:],  # a message of the other side
        msgspec.msgpack.encode([13, [1], ["x"]]),  # a token that is no number
        b"\x91" * 100_000,  # nested without end
    ],
)
def test_messages_of_no_kind_that_may_come_are_faults(payload: bytes) -> None:
    with pytest.raises(FrameFault, match="holds no message"):
        unpack(FROM_ENGINE, payload)


def test_numbers_of_numpy_are_numbers() -> None:
    import numpy as np

    batch = Batch([1], [int(np.int64(7))], [np.float64(-0.5)])
    assert unpack(FROM_ENGINE, pack(batch)[4:]) == Batch([1], [7], [-0.5])
