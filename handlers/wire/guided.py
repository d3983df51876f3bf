"""The form of a text as vLLM has it: `guided_json`, `guided_regex`, `guided_choice`, `structured_outputs`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from handlers.wire.grammar import schema_grammar
from handlers.wire.types import ChatRequest, CompletionRequest
from inference.errors import InvalidInput, Member
from inference.types import Grammar, GrammarKind

OUTPUTS: Final = "structured_outputs"
JSON, REGEX, CHOICE = "json", "regex", "choice"
PLACES = tuple((f"guided_{kind}", kind) for kind in (JSON, REGEX, CHOICE))
META = re.compile(r"[\\.^$*+?{}\[\]|()]")


def to_guided(body: ChatRequest | CompletionRequest) -> Grammar | None:
    """Return the grammar of a text; None where the body gives none in vLLM's words.

    Raises InvalidInput for more than one form, GrammarRefused for one that can't be, each naming the member.
    """
    given = list(_given(body))
    if not given:
        return None
    other = [member for member, _, _ in given[1:]]
    form = cast(Mapping[str, object], body).get("response_format")
    if isinstance(form, Mapping) and form.get("type") != "text":
        other.append("response_format")
    member, kind, value = given[0]
    if other:
        raise InvalidInput(
            Member(member), f" and `{other[0]}` both give the form of the text: leave one of them out"
        )
    if kind == JSON:
        return schema_grammar(value, member)
    source = str(value) if kind == REGEX else _any_of(cast(Sequence[str], value), member)
    return Grammar(kind=GrammarKind.REGEX, source=source, member=member)


def _given(body: ChatRequest | CompletionRequest) -> Iterator[tuple[str, str, object]]:
    """Yield the member, the kind and the value of each form."""
    for member, kind in PLACES:
        if (value := body.get(member)) is not None:
            yield member, kind, value
    outputs = body.get(OUTPUTS) or {}
    for _, kind in PLACES:
        if (value := outputs.get(kind)) is not None:
            yield f"{OUTPUTS}.{kind}", kind, value


def _any_of(texts: Sequence[str], member: str) -> str:
    """Return the expression that matches each of the texts, and nothing else."""
    if not texts:
        raise InvalidInput(Member(member), " is empty: name the texts of which the answer is one")
    if "" in texts:
        raise InvalidInput(Member(f"{member}[{list(texts).index('')}]"), " is empty: leave it out")
    return "|".join(META.sub(r"\\\g<0>", text) for text in texts)
