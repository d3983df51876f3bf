"""What a chat template does with tools, calls and results, found by letting it render a few of them.

Templates differ more than their words tell: some want the arguments of a call as an object and
some as JSON text, some refuse two calls in one message or an id of another shape, some drop
without a word what they don't know. What comes out of a probe says it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from inference.errors import TemplateFailed

Message = dict[str, Any]
Render = Callable[[Sequence[Message], Sequence[Message] | None], str]  # raises TemplateFailed

NAME, KEY, VALUE, RESULT, SAID = "probed_name", "probed_key", "probed_value", "probed_result", "probed_words"
DESCRIBED = {"description": "Probe"}
PARAMETERS = {"type": "object", "properties": {KEY: {"type": "string", **DESCRIBED}}}
BARE_PARAMETERS = {"type": "object", "properties": {KEY: {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": NAME, **DESCRIBED, "parameters": PARAMETERS}}
FUNCTION = "probed_function"  # a name that no call has
REASONING = ("reasoning_content", "thinking", "reasoning")  # one thing, named differently by templates
QUESTION = {"role": "user", "content": "Probe"}
ANSWER = {"role": "assistant", "content": "Probe"}
CUT = f'{{"{KEY}": "{VALUE}'  # arguments of a call that was cut off


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How a template wants the messages about tools; without `shows_*` it leaves them out or refuses them."""

    shows_tools: bool = False
    needs_description: bool = False  # of every tool, be it ""
    describes_parameters: bool = False  # every one of them, be it with ""
    needs_properties: bool = False  # of the parameters of every tool, be they none
    shows_calls: bool = False
    shows_results: bool = False
    text_arguments: bool = False  # as JSON text rather than as an object
    needs_object: bool = False  # a call whose arguments are none is refused, or loses them
    null_content: bool = False  # None rather than "" beside calls that come without words
    needs_names: bool = False  # of functions in their results
    short_ids: bool = False  # nine letters and digits
    single_calls: bool = False  # one in a message
    content_hides_calls: bool = False  # or they its words, and two messages have both
    thinks_alone: bool = False  # what was thought before words beside a call is refused
    sample: str = ""  # a call as it writes it, or failing that what it tells of tools


def probe(render: Render) -> Habits:
    """Return what a template does; refusals are part of that."""
    told = attempt(render, [QUESTION])
    about_tools = tool_habits(render) if NAME in told else Habits()
    for answered, short_ids, text, null in product((1, 0), (False, True), (False, True), (False, True)):
        habits = replace(
            about_tools,
            shows_calls=True,
            shows_results=bool(answered),  # some templates know calls, and no results
            text_arguments=text,
            null_content=null,
            short_ids=short_ids,
        )
        shown = attempt(render, [QUESTION, calling(habits, 1), *results(habits, answered)])
        if shows_call(shown) and (RESULT in shown or not answered):
            return look_closer(render, replace(habits, sample=shown))
    return replace(about_tools, shows_results=shows_results(render), sample=told)


def tool_habits(render: Render) -> Habits:
    """Return what a template that shows tools can't do without."""

    def fails(parameters: Message, **description: str) -> bool:
        function = {"name": NAME, **description, "parameters": parameters}
        return NAME not in attempt(render, [QUESTION], {"type": "function", "function": function})

    return Habits(
        shows_tools=True,
        needs_description=fails(PARAMETERS),
        describes_parameters=fails(BARE_PARAMETERS, **DESCRIBED),
        needs_properties=fails({"type": "object"}, **DESCRIBED),
    )


def look_closer(render: Render, habits: Habits) -> Habits:
    """Return the rest of the habits of a template that shows a call."""
    answers = results(habits, 2) if habits.shows_results else []
    several = attempt(render, [QUESTION, calling(habits, 2), *answers])
    call, said = calling(habits, 1), {"role": "assistant", "content": SAID}
    thought = {REASONING[0]: "probed_thought"}
    wordy = attempt(render, [QUESTION, call | said, *answers[:1]])
    # Some templates refuse two messages of the assistant in a row only once the chat goes on behind them
    turn = [said, call, *(answers[:1] or [QUESTION]), ANSWER, QUESTION]
    apart = attempt(render, [QUESTION, *turn, *turn])
    hidden = f"{NAME}0" not in wordy or (SAID not in wordy and SAID in apart and f"{NAME}0" in apart)
    return replace(
        habits,
        single_calls=f"{NAME}1" not in several,
        content_hides_calls=hidden,
        thinks_alone=wordy != "" and attempt(render, [QUESTION, call | said | thought, *answers[:1]]) == "",
        needs_object=VALUE not in attempt(render, [QUESTION, calling(habits, 1, CUT), *answers[:1]]),
        needs_names=habits.shows_results and needs_names(render, call, answers[0]),
    )


def needs_names(render: Render, call: Message, answer: Message) -> bool:
    """Return whether a result that doesn't name its function is refused, or stands there as if of none.

    Others find the name by the call's id, or have a word of their own in its place.
    """
    nameless = {member: value for member, value in answer.items() if member != "name"}
    without = attempt(render, [QUESTION, call, nameless])
    named = attempt(render, [QUESTION, call, answer | {"name": FUNCTION}])
    return RESULT not in without or (FUNCTION in named and named.replace(FUNCTION, "") == without)


def shows_call(text: str) -> bool:
    """Return whether a text has the whole call, and not as Python would print it."""
    return all(part in text for part in (f"{NAME}0", KEY, VALUE)) and f"'{KEY}'" not in text


def shows_results(render: Render) -> bool:
    """Return whether a template without calls has a way of its own to show results."""
    answer: Message = {"role": "assistant", "content": SAID}
    texts = [
        attempt(render, [QUESTION, answer, {"role": role, "content": RESULT, "tool_call_id": "0"}])
        for role in ("tool", "assistant")
    ]
    return RESULT in texts[0] and texts[0] != texts[1]


def attempt(render: Render, messages: Sequence[Message], tool: Message = TOOL) -> str:
    """Return what a template makes of messages; "" if it refuses them."""
    try:
        return render(messages, [tool])
    except TemplateFailed:
        return ""


def calling(habits: Habits, calls: int, arguments: object = None) -> Message:
    """Return a message of the assistant that calls, with `arguments` if there are any."""
    if arguments is None:
        arguments = json.dumps({KEY: VALUE}) if habits.text_arguments else {KEY: VALUE}
    return {
        "role": "assistant",
        "content": None if habits.null_content else "",
        "tool_calls": [
            {
                "id": probed_id(habits, at),
                "type": "function",
                "function": {"name": f"{NAME}{at}", "arguments": arguments},
            }
            for at in range(calls)
        ],
    }


def results(habits: Habits, count: int) -> list[Message]:
    """Return the results of calls."""
    return [
        {
            "role": "tool",
            "tool_call_id": probed_id(habits, at),
            "name": f"{NAME}{at}",
            "content": f"{RESULT}{at}",
        }
        for at in range(count)
    ]


def probed_id(habits: Habits, at: int) -> str:
    """Return the id of a call, of a shape that clients send or of the one that some templates want."""
    return f"abcdefgh{at}" if habits.short_ids else f"call-{at}"
