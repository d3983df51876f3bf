"""Messages on a stream of bytes: four bytes of length, the highest first, and so many of MessagePack."""

from __future__ import annotations

from typing import Any

import msgspec

HEADER_BYTES = 4

Payload = bytes | memoryview


class FrameFault(Exception):
    """What came is no frame, or none of the kind that may come; the connection can't go on."""


def pack(message: msgspec.Struct) -> bytes:
    """Return a message as a frame."""
    payload = _ENCODER.encode(message)
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class Unframer:
    """Cuts a stream into payloads, however it was cut before."""

    def __init__(self, limit: int) -> None:
        self._limit = limit  # bytes of one payload
        self._rest = bytearray()  # of a frame that is not complete

    def feed(self, data: bytes) -> list[Payload]:
        """Return the payloads that are complete now; raise FrameFault for one that is too long."""
        if not self._rest and len(data) == _frame_size(data):  # nearly always: one read, one frame
            self._check(len(data) - HEADER_BYTES)
            return [memoryview(data)[HEADER_BYTES:]]
        self._rest += data
        payloads: list[Payload] = []
        at = 0
        while (size := _frame_size(self._rest[at : at + HEADER_BYTES])) is not None:
            self._check(size - HEADER_BYTES)
            if at + size > len(self._rest):
                break
            payloads.append(bytes(self._rest[at + HEADER_BYTES : at + size]))
            at += size
        del self._rest[:at]
        return payloads

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise FrameFault(f"a frame must have <= {self._limit} bytes, and this one has {size}")


def unpack(decoder: msgspec.msgpack.Decoder[Any], payload: Payload) -> Any:
    """Return the message of a payload; raise FrameFault if it is none that the decoder knows."""
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FrameFault(f"a frame holds no message: {error}") from error


def _frame_size(data: bytes | bytearray) -> int | None:
    """Return the size of the frame that begins here, its header counted; None if that isn't known yet."""
    if len(data) < HEADER_BYTES:
        return None
    return HEADER_BYTES + int.from_bytes(data[:HEADER_BYTES], "big")


def _plain(value: Any) -> Any:
    """Return a numpy number as Python's own."""
    return value.item()


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
