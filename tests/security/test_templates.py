"""Chat templates: no client brings one or reaches through one, and no model's takes more than its time."""

from __future__ import annotations

import asyncio
import resource
import time
from typing import Any

import httpx
import pytest

from handlers.serving.serve import make_engine
from handlers.settings.table import Settings
from inference.errors import TemplateFailed
from inference.text.chat_template import ChatTemplate
from inference.text.growth import CHARACTERS
from inference.text.pipeline import TextPipeline
from inference.text.stand_in import stand_in_text
from inference.text.template import ChatJinja

SECONDS = 0.2  # for a template here
PATIENCE_SECONDS = 10.0  # of a machine with much to do; without limits these take minutes, or all memory

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
INJECTIONS = ["{{ 7 * 7 }}", "{% for i in range(3) %}x{% endfor %}", "{{ ''.__class__ }}", "{# gone #}"]


def doubled(start: str, step: str, end: str = "{{ ns.x | length }}") -> str:
    """Return a template that applies a step sixty times."""
    loop = "{% for i in range(60) %}{% set ns.x = " + step + " %}{% endfor %}"
    return "{% set ns = namespace(x=" + start + ") %}" + loop + end


BOMBS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "caller": "{% macro f() %}{{ caller() }}{% endmacro %}"
    "{% for i in range(99999) %}{% for j in range(99999) %}{% call f() %}{% endcall %}"
    "{% endfor %}{% endfor %}",
    "filters": "{% set r = range(99999) | list %}{% for i in range(99999) %}{% set x = r | sort | list %}"
    "{% endfor %}",
    "text by ~": doubled("'ab'", "ns.x ~ ns.x"),
    "text by +": doubled("'ab'", "ns.x + ns.x"),
    "text by *": "{{ ('a' * 9999999) * 9999999 }}",
    "text by join": doubled("'ab'", "[ns.x, ns.x] | join"),
    "text by join method": doubled("'ab'", "''.join([ns.x, ns.x])"),
    "text by replace": doubled("'ab'", "ns.x.replace('a', ns.x)"),
    "text by replace filter": doubled("'ab'", "ns.x | replace('a', ns.x)"),
    "text by format": doubled("'ab'", "'{}{}'.format(ns.x, ns.x)"),
    "text by %": doubled("'ab'", "'%s%s' % (ns.x, ns.x)"),
    "text by escape": doubled("'&'", "ns.x | forceescape"),
    "text by macro": doubled("'ab'", "f(ns.x)").join(["{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}", ""]),
    "text by set block": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}"
    "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}{{ ns.x | length }}",
    "text by filter block": doubled("'ab'", "f(ns.x)").join(
        ["{% macro f(x) %}{% filter upper %}{{ x }}{{ x }}{% endfilter %}{% endmacro %}", ""]
    ),
    "text by caller": "{% macro twice() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call twice() %}" * 40
    + "ab"
    + "{% endcall %}" * 40,
    "different texts in a block": "{% set x = 'a' * 15_000_000 %}{% set b %}"
    "{% for i in range(99999) %}{{ x ~ i }}{% endfor %}{% endset %}{{ b | length }}",
    "different lists in a macro": "{% macro f(x) %}{% for i in range(99999) %}{{ [x] }}{% endfor %}"
    "{% endmacro %}{{ f('a' * 15_000_000) | length }}",
    "width": "{{ '%999999999d' % 1 }}",
    "width by star": "{{ '%*d' % (999999999, 1) }}",
    "width by format": "{{ '{:999999999}'.format(1) }}",
    "width by nested format": "{{ '{:{w}}'.format(1, w=999999999) }}",
    "ljust": "{{ 'x'.ljust(999999999) }}",
    "zfill": "{{ 'x'.zfill(999999999) }}",
    "center": "{{ 'x' | center(999999999) }}",
    "tabs": "{{ ('\t' * 99999).expandtabs(99999) }}",
    "indent": "{{ ('\n' * 99999) | indent(99999) }}",
    "indented JSON": "{{ [[1]] | tojson(indent=999999999) }}",
    "date": "{{ strftime_now('%999999999d') }}",
    "translate": "{{ ('a' * 9999999).translate({97: 'b' * 999999}) }}",
    "bytes": "{{ (5).to_bytes(999999999, 'big') | length }}",
    "power": "{{ 10 ** 999999999 }}",
    "power of powers": doubled("10", "ns.x ** 900", "{{ ns.x > 1 }}"),
    "product of products": doubled("10 ** 900", "ns.x * ns.x", "{{ ns.x > 1 }}"),
    "list by +": doubled("[1]", "ns.x + ns.x"),
    "list by *": "{{ ([1] * 999999) * 999999 }}",
    "list of lists": doubled("[1]", "[ns.x, ns.x]", "{{ ns.x }}"),
    "tuple of tuples": doubled("[1]", "(ns.x, ns.x)", "{{ ns.x | string }}"),
    "dict of dicts": doubled("{}", "{'a': ns.x, 'b': ns.x}", "{{ ns.x | tojson }}"),
    "dict call": doubled("{}", "dict(a=ns.x, b=ns.x)", "{{ ns.x }}"),
    "dict of keys": doubled("[1]", "dict.fromkeys('ab', ns.x)", "{{ ns.x }}"),
    "batch": doubled("[1]", "(ns.x + ns.x) | batch(2) | list", "{{ ns.x }}"),
    "batch filled": "{{ [1] | batch(999999999, 'x') | list }}",
    "slice": "{{ [1] | slice(999999999) | list }}",
    "sum of lists": "{{ range(99999) | map('string') | map('list') | sum(start=[]) | length }}",
    "namespaces": "{% set ns = namespace(x=1) %}{% for i in range(60) %}"
    "{% set m = namespace(a=ns.x, b=ns.x) %}{% set ns.x = m %}{% endfor %}{{ ns.x }}",
    "lipsum": "{{ lipsum(n=999999999) }}",
    "urlize": "{{ ('http://a' * 99999) | urlize }}",
    "source": "{{ 1 }}" * 200_000,
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "blocks": "{% if 1 %}" * 500 + "{% endif %}" * 500,
}


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS.keys())
def test_a_template_that_explodes_is_stopped_in_its_time_and_within_memory(source: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.thread_time()
    try:
        told = len(ChatJinja(source).render({}, seconds=SECONDS))
    except TemplateFailed as failure:
        told = len(str(failure)) * 10_000
    assert told <= CHARACTERS
    assert time.thread_time() - began < PATIENCE_SECONDS
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 600 * 1024


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__closure__ }}",
        "{{ ('%s' | format)['__class__'] }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{x.__class__}'.format_map({'x': 1}) }}",
        "{{ ([1] | map(attribute='__class__') | list)[0].__mro__ }}",
        "{{ self.__init__.__globals__ }}",
        "{% include 'config.json' %}",
        "{% import 'os' as os %}{{ os.getcwd() }}",
        "{% set messages.x = 1 %}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_reaches_nothing_but_its_data(source: str) -> None:
    try:
        text = ChatJinja(source).render({"messages": [{"role": "user"}]})
    except TemplateFailed:
        return
    assert not any(word in text for word in ("class", "function", "module", "object at", "/"))


@pytest.mark.parametrize("injected", INJECTIONS)
def test_what_clients_write_is_text_to_the_template(injected: str, client: httpx.Client) -> None:
    message = {"role": "user", "content": injected}
    answer = client.post("/chat_tokenize", json={"messages": [message]})
    assert injected in answer.json()["templated_text"]


@pytest.mark.parametrize("member", ["chat_template", "template", "prompt_template"])
def test_a_template_of_the_clients_is_not_used(member: str, client: httpx.Client) -> None:
    body = {**CHAT, member: "{{ 7 * 7 }}", "chat_template_kwargs": {member: "{{ 7 * 7 }}"}}
    answer = client.post("/v1/chat/completions", json=body)
    told = answer.headers.get("x-ignored-parameters", "") + answer.text
    assert member in told
    rendered = client.post("/chat_tokenize", json={"messages": CHAT["messages"], member: "{{ 7 * 7 }}"})
    assert "49" not in rendered.json().get("templated_text", "")


@pytest.mark.parametrize("name", ["messages", "tools"])
def test_variables_can_not_replace_the_conversation(name: str, client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", json={**CHAT, "chat_template_kwargs": {name: []}})
    assert (answer.status_code, answer.json()["error_type"]) == (422, "template_error")


@pytest.mark.parametrize("name", ["raise_exception", "range", "namespace", "strftime_now", "self", "loop"])
def test_variables_named_as_functions_do_no_harm(name: str, client: httpx.Client) -> None:
    variables: dict[str, Any] = {name: {"a": ["{{ 1 }}"] * 10}}
    answer = client.post("/v1/chat/completions", json={**CHAT, "chat_template_kwargs": variables})
    assert answer.status_code in (200, 422)


def test_the_length_of_a_rendered_prompt_is_a_setting() -> None:
    messages = [{"role": "user", "content": "x" * 100}, {"role": "assistant", "content": "y" * 40}]
    source = "<u>{{ messages[0].content }}</u>{{ messages[1].content }}"
    length = 100 + len("<u></u>") + 40

    def render(most: int, *, continued: bool) -> str:
        chat = ChatTemplate({"default": source}, {}, characters=most)
        return chat.render(messages, continue_final=continued)

    assert len(render(length, continued=False)) == length
    for continued in (False, True):
        with pytest.raises(TemplateFailed, match=rf"must have <= {length - 1} characters \(`max_temp.*send"):
            render(length - 1, continued=continued)


def test_a_model_is_loaded_with_the_length_that_the_server_was_told() -> None:
    config = Settings(max_template_output=20).engine_config()
    text = make_engine(Settings(max_template_output=20))._load_text()
    assert config.template_characters == 20
    with pytest.raises(TemplateFailed, match=r"<= 20 characters \(`max_template_output`\)"):
        asyncio.run(text.render_chat([{"role": "user", "content": "Hi " * 20}]))
    text.close()


def test_the_time_of_a_template_is_a_setting() -> None:
    endless = BOMBS["loops"]
    tokenizer, _, _ = stand_in_text()
    chat = ChatTemplate(
        {"default": "{% if forever is defined %}" + endless + "{% endif %}"}, {}, seconds=0.05
    )
    pipeline = TextPipeline(tokenizer, chat, workers=1)
    message = {"role": "user", "content": "Hi"}
    began = time.thread_time()
    with pytest.raises(TemplateFailed, match=r"longer than 0\.05 s \(`template_timeout`\)"):
        asyncio.run(pipeline.render_chat([message], template_kwargs={"forever": True}))
    assert time.thread_time() - began < PATIENCE_SECONDS
    pipeline.close()
