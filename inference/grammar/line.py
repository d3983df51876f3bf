"""What crosses between the server and the processes in which grammars are compiled first.

The server sends a `Task`; BEGUN comes back once it is read whole, and then an `Answer`.
"""

from __future__ import annotations

import socket
from typing import TypeVar, cast

import msgspec

from inference.grammar_limits import GrammarLimits
from inference.ipc.framing import Unframer, unpack
from inference.types import GrammarKind

BEGUN = b"."
READ_BYTES = 65_536
MOST_BYTES = 16 * 2**20  # of a message: more than the limits of a grammar let any be

Message = TypeVar("Message")


class Task(msgspec.Struct, frozen=True, array_like=True):
    """A grammar that is to be compiled."""

    kind: GrammarKind
    source: str
    lead: str
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


def receive(line: socket.socket, decoder: msgspec.msgpack.Decoder[Message]) -> Message | None:
    """Return the next message, None at the end; raise OSError, also if it takes too long, and FrameFault."""
    unframer = Unframer(MOST_BYTES)
    while data := line.recv(READ_BYTES):
        for payload in unframer.feed(data):
            return cast(Message, unpack(decoder, payload))  # whoever is asked says one thing
    return None
