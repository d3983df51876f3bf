from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from inference.errors import TemplateFailed
from inference.text.stand_in import CHATML
from inference.text.template import ChatJinja
from inference.tools.habits import Habits, Message, probe

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
NATIVE = (
    "{{ tools | tojson }}"
    + TURNS
    + "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    + "{% endfor %}"
)


def habits(source: str) -> Habits:
    jinja = ChatJinja(source)

    def render(messages: Sequence[Message], tools: Sequence[Message] | None) -> str:
        return jinja.render({"messages": messages, "tools": tools})

    return probe(render)


def flags(source: str) -> set[str]:
    found = habits(source)
    return {name for name in found.__slots__ if getattr(found, name) is True}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[0].content }}", set()),
        (CHATML, {"shows_results"}),
        (NATIVE, {"shows_tools", "shows_calls", "shows_results"}),
        (
            NATIVE.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]"),
            {"shows_tools", "shows_calls", "shows_results", "single_calls"},
        ),
        (
            NATIVE.replace("| tojson }}{% endfor", "+ '' }}{% endfor"),
            {"shows_tools", "shows_calls", "shows_results", "text_arguments"},
        ),
        (
            NATIVE.replace("m.tool_calls or []", "(m.tool_calls if m.content is none else [])"),
            {"shows_tools", "shows_calls", "shows_results", "null_content", "content_hides_calls"},
        ),
        (  # the words beside a call are left out, as by Llama 3.1
            NATIVE.replace("{{ m.content or '' }}", "{{ m.content or '' if not m.tool_calls }}"),
            {"shows_tools", "shows_calls", "shows_results", "content_hides_calls"},
        ),
        (  # and where two messages of the assistant are refused, that is all that can be had
            NATIVE.replace(
                "{{ m.content or '' }}",
                "{{ m.content or '' if not m.tool_calls }}{% if loop.previtem and "
                "loop.previtem.role == m.role == 'assistant' %}{{ raise_exception('turns!') }}{% endif %}",
            ),
            {"shows_tools", "shows_calls", "shows_results"},
        ),
        (  # or, as by Mistral Nemo's, once the chat goes on
            "{% for m in messages | rejectattr('role', 'equalto', 'tool') "
            "| selectattr('tool_calls', 'undefined') %}"
            "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns!') }}{% endif %}"
            "{% endfor %}"
            + NATIVE.replace("{{ m.content or '' }}", "{{ m.content or '' if not m.tool_calls }}"),
            {"shows_tools", "shows_calls", "shows_results"},
        ),
        (  # as by gpt-oss's
            NATIVE.replace(
                "{{ m.content or '' }}",
                "{{ m.content or '' }}{% if m.content and m.tool_calls and m.reasoning_content %}"
                "{{ raise_exception('both!') }}{% endif %}",
            ),
            {"shows_tools", "shows_calls", "shows_results", "thinks_alone"},
        ),
        (
            NATIVE.replace("c.function.arguments | tojson", "c.function.arguments.items() | list | tojson"),
            {"shows_tools", "shows_calls", "shows_results", "needs_object"},
        ),
        (
            NATIVE.replace(
                "{% for c",
                "{% if m.tool_calls and m.tool_calls[0].id | length != 9 %}"
                "{{ raise_exception('nine!') }}{% endif %}{% for c",
            ),
            {"shows_tools", "shows_calls", "shows_results", "short_ids"},
        ),
        (
            NATIVE.replace(
                "{{ tools | tojson }}",
                "{% for t in tools %}{{ t.function.name + t.function.description }}{% endfor %}",
            ),
            {"shows_tools", "needs_description", "shows_calls", "shows_results"},
        ),
        (  # as by Command R+'s
            NATIVE.replace(
                "{{ tools | tojson }}",
                "{% for t in tools %}{{ t.function.name }}"
                "{% for name, p in t.function.parameters.properties | items %}{{ name + p.description }}"
                "{% endfor %}{% endfor %}",
            ),
            {"shows_tools", "describes_parameters", "shows_calls", "shows_results"},
        ),
        (
            NATIVE.replace(
                "{{ tools | tojson }}",
                "{% for t in tools %}{{ t.function.name }}"
                "{% for name, p in t.function.parameters.properties.items() %}"
                "{{ name }}{% endfor %}{% endfor %}",
            ),
            {"shows_tools", "needs_properties", "shows_calls", "shows_results"},
        ),
        (
            NATIVE.replace(
                "[{{ m.role }}]", "{% if m.role == 'tool' %}{{ raise_exception('who?') }}{% endif %}"
            ),
            {"shows_tools", "shows_calls"},
        ),
        (  # as by Hermes 2 Pro's
            NATIVE.replace(
                "[{{ m.role }}]",
                "[{{ m.role }}]{% if m.role == 'tool' and m.name is not defined %}"
                "{{ raise_exception('name?') }}{% endif %}",
            ),
            {"shows_tools", "shows_calls", "shows_results", "needs_names"},
        ),
        (
            NATIVE.replace("[{{ m.role }}]", "[{{ m.role }} {{ m.name }}]"),
            {"shows_tools", "shows_calls", "shows_results", "needs_names"},
        ),
        (  # as by Kimi K2's
            NATIVE.replace("{{ m.role }}", "{{ m.name or m.role }}"),
            {"shows_tools", "shows_calls", "shows_results"},
        ),
        (
            # Everybody who isn't the user is shown as the assistant: a result would be its words
            "{% for m in messages %}{{ 'U' if m.role == 'user' else 'A' }}{{ m.content }}{% endfor %}",
            set(),
        ),
        (
            # Python's notation is none that a model knows for arguments
            NATIVE.replace("c.function.arguments | tojson", "c.function.arguments"),
            {"shows_tools", "shows_calls", "shows_results", "text_arguments"},
        ),
    ],
)
def test_what_a_template_does_is_found_by_trying(source: str, expected: set[str]) -> None:
    assert flags(source) == expected


def test_a_template_that_refuses_everything_has_no_habits() -> None:
    def render(messages: Sequence[Message], tools: Any) -> str:
        raise TemplateFailed("no")

    assert probe(render) == Habits()


def test_the_sample_is_a_call_or_what_is_told_of_tools() -> None:
    assert 'probed_name0{"probed_key": "probed_value"}' in habits(NATIVE).sample
    told = habits("{% if tools %}Write <tool_call>.{% endif %}" + TURNS + "{% endfor %}")
    assert told.sample.startswith("Write <tool_call>.")
