"""What one operation of a chat template can build, or take, has bounds."""

from __future__ import annotations

import re

import pytest
from jinja2.exceptions import SecurityError

from inference.errors import TemplateFailed
from inference.text.template import ChatJinja

SECONDS = 5.0
LONG = "'a' * 1000000"
HELD = "{% set ns = namespace(x='A' * 1000000) %}"  # in what no list tells the length of
SOUGHT = "'ab' ~ 'a' * 4000000"


def turned(start: str, step: str, end: str = "{{ ns.x | length }}") -> str:
    """Return a template that applies a step sixty times."""
    loop = "{% for i in range(60) %}{% set ns.x = " + step + " %}{% endfor %}"
    return "{% set ns = namespace(x=" + start + ") %}" + loop + end


FORMS = [
    "{{ ('{0}' * 150).format(" + LONG + ") | length }}",
    "{{ ('{x}' * 150).format_map({'x': " + LONG + "}) | length }}",
    "{{ ('{0:99999}' * 1500).format(1) | length }}",
    "{{ ('{0[a]}' * 150).format({'a': " + LONG + "}) | length }}",
    "{{ ('{0!r}' * 30).format('\x00' * 200000) | length }}",
    HELD + "{{ ('{0.x}' * 150).format(ns) | length }}",
    "{{ (('%(x)s' * 150) % {'x': " + LONG + "}) | length }}",
    "{{ (('%99999d' * 1500) % ((1,) * 1500)) | length }}",
    "{{ (('%(x)r' * 30) % {'x': '\x00' * 200000}) | length }}",
    "{{ ('%(x)s' * 150) | format(x=" + LONG + ") | length }}",
    "{{ (('%s' | safe) % ('&' * 4000000)) | length }}",
]
ESCAPES = [
    "{{ ('\x00' * 150).translate([" + LONG + "]) | length }}",
    turned("'a'", "ns.x.encode('utf-32').hex()"),
    turned("'é'", "ns.x.encode('unicode_escape').decode()"),
    "{{ ('é' * 1000).encode('ascii', 'xmlcharrefreplace') | length }}",
    "{{ ('a' * 9000000).encode().hex() | length }}",
    "{{ 'a-999'.encode().decode('punycode') }}",
    turned("'&' * 3000000", "ns.x | forceescape"),
    turned("'%' * 3000000", "ns.x | urlencode"),
    turned("'\"'", "ns.x | tojson"),
    "{{ (('a' * 10000) | safe).replace('a', 'b' * 100000) | length }}",
    "{{ ('1' * 4000000) | replace(1, 22222222) | length }}",
    "{{ ('\u0390' * 8000000).upper() | length }}",
    "{{ ('\u0390' * 8000000) | upper | length }}",
    "{{ ('x\\r' * 4000000) | indent(100) | length }}",
    "{{ ('x\n' * 4000000) | indent | length }}",
]
DUMPS = [
    "{{ range(150) | list | tojson(indent=" + LONG + ") | length }}",
    "{{ range(150) | list | tojson(separators=(" + LONG + ", ':')) | length }}",
    turned("range(2000) | list", "[[[[[ns.x]]]]]", "{{ ns.x | tojson(indent=256) | length }}"),
]
ATTRIBUTES = [
    *(
        HELD + "{{ ([ns] * 150) | " + filter + " | string | length }}"
        for filter in (
            "join(attribute='x')",
            "join('', 'x')",
            "sort(attribute='x')",
            "unique(attribute='x')",
            "min(attribute='x')",
            "max(attribute='x')",
            "groupby('x')",
            "map(attribute='x') | map('lower') | list | length",
        )
    ),
    "{% set ns = namespace(x=range(10000) | list) %}"
    "{{ ([ns] * 500) | sum(attribute='x', start=[]) | length }}",
]
NESTED = [
    turned("{'a': 1}", "{'a': ns.x.items(), 'b': ns.x.items()}", "{{ ns.x }}"),
    turned("1", "cycler(ns.x, ns.x).items", "{{ {ns.x: 1} | length }}"),
    turned("{}", "{}.fromkeys('ab', ns.x)", "{{ ns.x | length }}"),
    turned("[1]", "[1] | slice(3, ns.x) | list", "{{ 1 }}"),
    turned("[1]", "f(ns.x, ns.x)", "{{ 1 }}").join(
        ["{% set t = namespace() %}{% macro f() %}{% set t.x = varargs %}{% endmacro %}", ""]
    )
    + "{% for i in range(60) %}{% set y = f(t.x, t.x) %}{% endfor %}",
]
CALLS = [
    "{{ 5 | round(-4000000) }}",
    "{{ 5 | round(precision=-4000000) }}",
    "{{ 1 | round(1500000, 'ceil') }}",
    *("{{ ('a' * 8000000)." + name + "(" + SOUGHT + ") }}" for name in ("rfind", "rsplit", "rpartition")),
    "{{ ('a' * 8000000).strip('b' * 4000000 ~ 'a') }}",
    "{{ ('a' * 8000000) | trim('b' * 4000000 ~ 'a') }}",
    "{{ ('a ' * 8000000).split() | length }}",
    "{{ ('f' * 8000000) | int(base=16) > 1 }}",
    "{{ (5).from_bytes(('f' * 8000000).encode(), 'big') > 1 }}",
    "{{ (('&lt;' * 3000000) | safe).unescape() | length }}",
    "{{ (('<!---->' * 2000) | safe).striptags() }}",
    "{{ ('a-' * 8000000) | title | length }}",
    "{{ ''.maketrans('a' * 8000000, 'b' * 8000000) | length }}",
    "{{ ([[]] * 5000) | sum(start=range(99999) | list) | length }}",
]


@pytest.mark.parametrize("source", [*FORMS, *ESCAPES, *DUMPS, *ATTRIBUTES, *NESTED, *CALLS])
def test_what_would_build_or_take_too_much_is_refused(source: str) -> None:
    with pytest.raises(TemplateFailed) as failure:
        ChatJinja(source).render({}, seconds=SECONDS)
    assert isinstance(failure.value.__cause__, SecurityError), failure.value


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ '{}: {}'.format('user', 'Hi') }}", "user: Hi"),
        ("{{ '{0[role]:>6}'.format({'role': 'user'}) }}", "  user"),
        ("{{ '{role}{role}'.format_map({'role': 'a'}) }}", "aa"),
        ("{{ '%(a)s %(b)5.1f%%' % {'a': 1, 'b': 2.25} }}", "1   2.2%"),
        ("{{ '%s=%r' % ('a', 'b') }}{{ '%s' | format([1]) }}", "a='b'[1]"),
        (
            "{{ {'a': [1, 'é']} | tojson(indent=1, separators=(',', ': ')) }}",
            '{\n "a": [\n  1,\n  "é"\n ]\n}',
        ),
        (
            "{{ {'b': 1, 'a': [2]} | tojson(indent='\t', sort_keys=true) }}",
            '{\n\t"a": [\n\t\t2\n\t],\n\t"b": 1\n}',
        ),
        ("{{ 'abc'.translate({97: 'x', 98: none}) }}", "xc"),
        ("{{ 'é'.encode('utf-8').decode() }}{{ 'a'.encode().hex() }}", "é61"),
        ("{{ [{'a': 'x'}, {'a': 'y'}] | join(', ', attribute='a') }}", "x, y"),
        ("{{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }}{{ [[1], [2]] | sum(start=[]) }}", "3[1, 2]"),
        ("{{ [{'a': 'B'}, {'a': 'a'}] | sort(attribute='a') | map(attribute='a') | join }}", "aB"),
        ("{% for key, all in [{'a': 1, 'b': 2}] | groupby('a') %}{{ key }}{{ all[0].b }}{% endfor %}", "12"),
        ("{{ 5.25 | round(1) }}{{ 5.25 | round }}{{ 4.1 | round(0, 'ceil') }}", "5.25.05.0"),
        ("{{ ' a b '.strip().split(' ', 1) | list }}{{ 'x.y'.rsplit('.', 1)[1] }}", "['a', 'b']y"),
        ("{% macro f(a) %}{{ varargs | join }}{{ kwargs.c }}{% endmacro %}{{ f(1, 2, 3, c=4) }}", "234"),
        ("{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "aba"),
        ("{% for x in 'ab' %}{{ x.upper() }}{{ '{}'.format(x) }}{% endfor %}", "AaBb"),
        ("{{ '&' | e }}{{ 'a b' | urlencode }}{{ 'a b' | title }}{{ '12' | int }}", "&amp;a%20bA B12"),
    ],
)
def test_what_templates_do_with_a_few_values_is_as_before(source: str, text: str) -> None:
    assert ChatJinja(source).render({}) == text


def test_long_json_is_that_of_short_values() -> None:
    value = {"a": ["é\n" * 800_000, *range(9)]}
    text = ChatJinja("{{ value | tojson }}").render({"value": value})
    assert re.sub(r"(é\\n)+", "-", text) == '{"a": ["-", 0, 1, 2, 3, 4, 5, 6, 7, 8]}'
