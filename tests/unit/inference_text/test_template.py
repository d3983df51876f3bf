from __future__ import annotations

from datetime import datetime

import pytest

from inference.errors import TemplateFailed
from inference.text.template import ChatJinja


def render(source: str, **context: object) -> str:
    return ChatJinja(source, clock=lambda: datetime(2025, 7, 10)).render(context)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("  {% if true %}\na\n  {% endif %}\nb", "a\nb"),  # trim_blocks and lstrip_blocks
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ strftime_now('%d %b %Y') }}", "10 Jul 2025"),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
        ("{{ dict(a=1).a }}{{ dict.fromkeys('x', 2).x }}", "12"),
        ("{{ 'ab' * 2 }}{{ 2 ** 3 }}{{ '%s!' % 'a' }}", "abab8a!"),
        ("{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(2) }}", "210"),
    ],
)
def test_renders_as_transformers_does(source: str, text: str) -> None:
    assert render(source) == text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{{ raise_exception('no system role') }}", "no system role (chat template, line 2)"),
        ("\n\n{{ person.name }}", "'person' is undefined (chat template, line 3)"),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero (chat template, line 1)"),
        ("{{ none.x.y }}", "'None' has no attribute 'x' (chat template, line 1)"),
    ],
)
def test_a_failure_names_reason_and_line(source: str, message: str) -> None:
    with pytest.raises(TemplateFailed) as failure:
        render(source)
    assert str(failure.value) == message


def test_a_syntax_error_names_its_line() -> None:
    with pytest.raises(TemplateFailed, match=r"line 2\)$"):
        ChatJinja("a\n{% if %}")


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{% for i in range(99999) %}{{ f() if false }}{% endfor %}{% endmacro %}"
        "{% for i in range(99999) %}{% set x = f() %}{% endfor %}",
    ],
)
def test_a_template_that_never_ends_is_stopped(source: str) -> None:
    with pytest.raises(TemplateFailed, match=r"took longer than .* s \(`template_timeout`\)"):
        ChatJinja(source).render({}, seconds=0.05)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 99999999999 }}",
        "{{ 99999999999 * 'a' }}",
        "{{ 10 ** 99999999 }}",
        "{{ '%99999999999d' % 1 }}",
        "{{ range(99999999999) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ ''.__class__.__mro__ }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_can_neither_blow_up_nor_reach_out(source: str) -> None:
    with pytest.raises(TemplateFailed):
        render(source, messages=[])


def test_output_has_a_limit() -> None:
    with pytest.raises(TemplateFailed, match="must have <= 16777216 characters"):
        render("{% for i in range(99) %}{{ text }}{% endfor %}", text="x" * 1_000_000)
