"""What crosses between the server and the processes in which grammars are compiled first.

The server sends a `Task`; BEGUN comes back once it is read whole, and then an `Answer`. Each is MessagePack
after four bytes of length, the highest first.
"""

from __future__ import annotations

import socket

import msgspec

from inference.grammar.limits import GrammarLimits
from inference.types import GrammarKind

BEGUN = b"."
_HEAD_BYTES = 4


class Task(msgspec.Struct, frozen=True, array_like=True):
    """A grammar that is to be compiled."""

    kind: GrammarKind
    source: str
    limits: GrammarLimits


class Made(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """It can be compiled."""

    lark: str
    seconds: float  # that it took


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """What is wrong with it; see `GrammarFault`."""

    reason: str
    pointer: str
    label: str


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Its compiler failed, and knew it: native code that panics, or a fault of ours."""

    kind: str
    outline: str  # of the exception, without words of the client's


Answer = Made | Refused | Failed

TASKS: msgspec.msgpack.Decoder[Task] = msgspec.msgpack.Decoder(Task)
ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def send(line: socket.socket, message: msgspec.Struct) -> None:
    """Send a message; raise OSError if nobody is there any more."""
    payload = msgspec.msgpack.encode(message)
    line.sendall(len(payload).to_bytes(_HEAD_BYTES, "big") + payload)


def receive(line: socket.socket) -> bytes:
    """Return a message's MessagePack, nothing at the end; raise OSError, also if it takes too long."""
    head = _exactly(line, _HEAD_BYTES)
    return _exactly(line, int.from_bytes(head, "big")) if head else b""


def _exactly(line: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = line.recv(size - len(data))
        if not chunk:
            return b""
        data += chunk
    return bytes(data)
