from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.config import EngineConfig, ModelConfig
from inference.grammar_limits import GrammarLimits
from inference.ipc.framing import pack, unpack
from inference.ipc.grammar_tokens import GrammarSource, GrammarTokens
from inference.ipc.messages import (
    FROM_API,
    FROM_CHILD,
    FROM_ENGINE,
    FROM_PARENT,
    Abort,
    Attach,
    Configuration,
    Logged,
    Progress,
    Ready,
    Stop,
    Submit,
    Unavailable,
    Vocabulary,
)
from inference.process.requests import from_submit, to_submit
from inference.types import CoreRequest, LogprobsMode, Sampling
from tests.unit.inference.puppet import MODEL
from tests.unit.inference_process.outputs import REQUEST

CONFIG = EngineConfig(model=ModelConfig(model_id="m", quantize="int8"), threads=2, fuse_layers=False)
LOGGED = Logged("inference", 20, 1.5, "text", None, "file.py", 7, "run", "engine")
GRAMMAR = GrammarSource("start: /a/", GrammarLimits(seconds=1.5, nesting=9), 0.003)


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (FROM_API, Attach(True)),
        (FROM_API, Abort(2**40)),
        (FROM_API, Vocabulary(GrammarTokens((b"", b"\xff\0", b"a"), (2,), (0, 1)))),
        (FROM_ENGINE, Progress("é\n")),
        (FROM_ENGINE, Ready(MODEL)),
        (FROM_ENGINE, Unavailable("no")),
        (FROM_PARENT, Configuration(CONFIG, 5, "/tmp/x/engine.sock", {"": 30, "inference": 20})),
        (FROM_PARENT, Stop()),
        (FROM_CHILD, LOGGED),
        (FROM_CHILD, Ready(MODEL)),
    ],
)
def test_messages_cross_unchanged(decoder: msgspec.msgpack.Decoder[object], message: msgspec.Struct) -> None:
    assert unpack(decoder, pack(message)[4:]) == message


@given(REQUEST, st.integers(0, 2**60))
def test_requests_cross_with_everything_that_they_have(request: CoreRequest, number: int) -> None:
    sent = to_submit(number, request)
    received = unpack(FROM_API, pack(sent)[4:])
    assert received == sent
    assert from_submit(received, request.id, None) == request  # what is forgotten would show its default


def test_grammars_cross_as_source_and_limits() -> None:
    sent = Submit(1, "a", (1,), 1, 0, False, Sampling(), LogprobsMode.RAW, 0, False, 0, GRAMMAR, "", "", -1)
    assert unpack(FROM_API, pack(sent)[4:]).grammar == GRAMMAR
