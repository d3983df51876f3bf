from __future__ import annotations

from collections.abc import Sequence

import pytest

from handlers.wire.predictions import prediction
from inference.tools.types import CallArguments, CallEnd, CallStart, Part, TextPart
from inference.types import Event, Token
from tests.unit.handlers_wire.conftest import Sample
from tests.unit.handlers_wire.scripted import ScriptedParser

F, END = CallStart(0, 'f"'), CallEnd(0)
G = [CallStart(1, "g"), CallArguments(1, "{}"), CallEnd(1)]
CALL = r'{"function":{"_name":"f\""'


@pytest.mark.parametrize(
    ("parts", "rest", "text"),
    [
        ([TextPart("Hi "), TextPart("there")], [TextPart(".\n")], "Hi there.\n"),
        ([], [], ""),
        (
            [F, CallArguments(0, "{"), CallArguments(0, '"a":{}'), CallArguments(0, "}"), END],
            [],
            CALL + ',"a":{}}}',
        ),
        ([TextPart("So: "), F, CallArguments(0, "{}")], [END], CALL + "}}"),
        ([F], [], CALL),
        ([F, CallArguments(0, "{")], [], CALL),
        ([F, CallArguments(0, '{"a')], [], CALL + ',"a'),
        ([F, CallArguments(0, "{}"), END, *G], [], f'[{CALL}}}}},{{"function":{{"_name":"g"}}}}]'),
        ([F, CallArguments(0, "{}"), END, *G[:2]], [], f'[{CALL}}}}},{{"function":{{"_name":"g"}}'),
    ],
)
def test_words_are_told_as_they_are_and_calls_as_tgis_grammar_has_them(
    parts: Sequence[Part], rest: Sequence[Part], text: str
) -> None:
    output = tuple(Event(at, Token(1, "x", -1.0, False), (), "x") for at in range(1, len(parts) + 1))
    finish = Sample.finish("", generated=len(parts) + 1)
    last = Event(len(parts) + 1, Token(1, "", -1.0, True), (), "", finish)
    pushes = [*([part] for part in parts), []]
    assert prediction((*output, last), ScriptedParser(pushes, rest)) == text
