from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from inference.config import ModelConfig
from inference.errors import InvalidInput, ModelUnavailable, TemplateFailed
from inference.text.chat_template import ChatTemplate, load_chat_template
from inference.text.files import ModelFiles
from inference.text.stand_in import CHATML
from inference.text.template import ChatJinja

CORPORA = Path(__file__).parents[4] / "shared" / "reference" / "corpora"
CORPUS_DAY = datetime(2025, 7, 10)  # the day that its date-dependent targets were made for

USER = {"role": "user", "content": "Hi"}
LLAMA2 = (
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + message['content'] | trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
TOOLS = "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}{{ messages[0].content }}"


def template(source: str, **tokens: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, tokens, clock=lambda: CORPUS_DAY)


@cache  # two cases have the same template, on average
def compiled(source: str) -> ChatJinja:
    return ChatJinja(source, clock=lambda: CORPUS_DAY)


@cache
def cases() -> list[dict[str, Any]]:
    files = sorted(CORPORA.glob("chat_templates_*.json"))
    return [case for file in files for case in json.loads(file.read_text())]


@pytest.mark.parametrize(
    ("source", "messages", "prompt"),
    [
        (CHATML, [USER], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        (LLAMA2, [USER], "<s>[INST] Hi [/INST]"),
        (
            LLAMA2,
            [USER, {"role": "assistant", "content": " Yo "}, USER],
            "<s>[INST] Hi [/INST] Yo </s><s>[INST] Hi [/INST]",
        ),
        ("{{ messages | length }}", [], "0"),
        ("{{ messages[0].thinking }}", [{"role": "user", "reasoning": "hm", "content": ""}], "hm"),
        ("{{ strftime_now('%Y-%m-%d') }}", [USER], "2025-07-10"),
        ("{{ tools is none }}{{ documents is none }}", [USER], "TrueTrue"),
    ],
)
def test_messages_become_the_prompt(source: str, messages: list[dict[str, Any]], prompt: str) -> None:
    assert template(source, bos_token="<s>", eos_token="</s>").render(messages) == prompt


@pytest.mark.skipif(not cases(), reason=f"the corpus of chat templates is not at {CORPORA}")
def test_every_case_of_the_corpus_renders_as_expected() -> None:
    wrong = [
        case["name"]
        for case in cases()
        if compiled(case["template"]).render(case["context"]) != case["target"]
    ]
    assert wrong == []


@pytest.mark.skipif(not cases(), reason=f"the corpus of chat templates is not at {CORPORA}")
def test_every_conversation_of_the_corpus_becomes_the_prompt_that_transformers_makes() -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    ours = cache(lambda source: template(source, **tokens))
    compared = 0
    for case in cases():
        if "strftime_now" in case["template"]:
            continue  # transformers takes the day from the clock
        messages, tools = case["context"]["messages"], case["context"].get("tools")
        continues = messages[-1]["role"] == "assistant" and messages[-1]["content"] != ""
        try:
            expected = utils.render_jinja_template(
                conversations=[messages],
                tools=tools,
                chat_template=case["template"],
                add_generation_prompt=True,
                continue_final_message=continues,
                **tokens,
            )[0][0]
        except Exception:
            continue  # the template, made for other messages, refuses these
        prompt = ours(case["template"]).render(messages, tools=tools)
        assert prompt == (expected.rstrip() if continues else expected), case["name"]
        compared += 1
    assert compared > 150


@pytest.mark.parametrize(
    ("source", "content", "prompt"),
    [
        (
            CHATML,
            "The answer is",
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nThe answer is",
        ),
        (CHATML, "Sure, ", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nSure,"),
        (CHATML, "assistant", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nassistant"),
        (LLAMA2, " Yo ", "<s>[INST] Hi [/INST] Yo"),
        ("{{ messages[0].content }}!", "left out", "Hi!"),
        ("{{ messages[0].content }}>", "", "Hi>"),
        ("{{ messages[-1].content[0].text }}!", [{"type": "text", "text": "so"}], "so"),
    ],
)
def test_the_prompt_ends_after_the_last_words_of_the_assistant(
    source: str, content: object, prompt: str
) -> None:
    messages: list[dict[str, object]] = [{**USER}, {"role": "assistant", "content": content}]
    assert template(source, bos_token="<s>", eos_token="</s>").render(messages) == prompt


SPOKEN = {"role": "assistant", "content": "Sure"}
OPEN_TURN = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("last", "continue_final", "prompt"),
    [
        (SPOKEN, None, OPEN_TURN + "Sure"),
        (SPOKEN, True, OPEN_TURN + "Sure"),
        (SPOKEN, False, OPEN_TURN + "Sure<|im_end|>\n<|im_start|>assistant\n"),
        (SPOKEN | {"tool_calls": [{}]}, None, OPEN_TURN + "Sure<|im_end|>\n<|im_start|>assistant\n"),
        (USER, None, OPEN_TURN.replace("assistant", "user") + "Hi<|im_end|>\n<|im_start|>assistant\n"),
    ],
)
def test_the_last_message_is_gone_on_with_as_asked(
    last: dict[str, object], continue_final: bool | None, prompt: str
) -> None:
    assert template(CHATML).render([USER, last], continue_final=continue_final) == prompt


@pytest.mark.parametrize(
    ("source", "messages", "problem"),
    [
        (CHATML, [USER], "role 'assistant' to go on with. The last one's role: 'user'"),
        (CHATML, [], "The last one's role: missing"),
        (CHATML, [USER, SPOKEN | {"content": ""}], "the last message's `content` is empty"),
        (CHATML, [USER, SPOKEN | {"tool_calls": [{}]}], "a message that has `tool_calls`: leave them out"),
        ("{{ messages[0].content }}", [USER, SPOKEN], "the chat template leaves out the last message"),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused(
    source: str, messages: list[dict[str, object]], problem: str
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        template(source).render(messages, continue_final=True)
    assert problem in str(refusal.value)


def test_the_names_are_those_of_the_variables_that_a_template_reads() -> None:
    sources = {
        "default": "{% set ns = namespace(a=1) %}{{ ns.a }}{% for m in messages %}{{ m.x }}{% endfor %}",
        "tool_use": "{{ strftime_now('%Y') }}{% if enable_thinking is defined %}{{ tools }}{% endif %}",
        "broken": "{% if %}",
    }
    assert ChatTemplate(sources, {}).names == {"messages", "enable_thinking", "tools"}
    assert ChatTemplate({}, {}).names == frozenset()


def test_rendering_leaves_the_messages_as_they_are() -> None:
    messages = [USER, {"role": "assistant", "content": "a"}]
    template(CHATML).render(messages)
    assert messages == [USER, {"role": "assistant", "content": "a"}]


def test_keywords_reach_the_template() -> None:
    source = "{{ enable_thinking }}{{ add_generation_prompt }}"
    kwargs = {"enable_thinking": "yes", "add_generation_prompt": False}
    assert template(source).render([USER], template_kwargs=kwargs) == "yesFalse"


@pytest.mark.parametrize("name", ["messages", "tools"])
def test_keywords_cannot_replace_what_the_request_says(name: str) -> None:
    with pytest.raises(TemplateFailed, match=f"can't set `{name}`"):
        template(CHATML).render([USER], template_kwargs={name: []})


def test_a_missing_template_is_named_as_tgi_names_it() -> None:
    with pytest.raises(TemplateFailed) as failure:
        ChatTemplate({}, {}).render([USER])
    assert str(failure.value) == "template not found"


def test_a_broken_template_fails_its_users_only(caplog: pytest.LogCaptureFixture) -> None:
    broken = template("{% if %}")
    assert "chat requests will be refused" in caplog.text
    with pytest.raises(TemplateFailed, match="line 1"):
        broken.render([USER])


def test_the_template_for_tools_is_used_with_tools() -> None:
    both = ChatTemplate({"default": "plain", "tool_use": TOOLS}, {})
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    assert both.render([USER]) == "plain"
    assert both.render([USER], tools=[]) == "plain"
    assert both.render([USER], tools=[tool]) == "add;Hi"


def loaded(directory: Path, files: dict[str, object], config: ModelConfig | None = None) -> ChatTemplate:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_chat_template(ModelFiles(directory), config or ModelConfig())


def test_each_place_wins_over_those_after_it(tmp_path: Path) -> None:
    files: dict[str, object] = {"processor_config.json": {"chat_template": "processor"}}
    steps: list[tuple[str, object, str]] = [
        ("tokenizer_config.json", {"chat_template": "tokenizer"}, "tokenizer"),
        ("chat_template.json", {"chat_template": "json"}, "json"),
        ("chat_template.jinja", "jinja", "jinja"),
    ]
    assert loaded(tmp_path, files).render([USER]) == "processor"
    for name, content, text in steps:
        files[name] = content
        assert loaded(tmp_path, files).render([USER]) == text
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"chat_template": "given {{ bos_token }}", "bos_token": "<b>"}))
    config = ModelConfig(tokenizer_config_path=str(given))
    assert loaded(tmp_path, files, config).render([USER]) == "given <b>"


def test_templates_can_be_a_list_with_names(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    chat = loaded(tmp_path, {"tokenizer_config.json": {"chat_template": named}})
    assert (chat.render([USER]), chat.render([USER], tools=[{}])) == ("plain", "tools")


def test_templates_can_be_files_of_their_own(tmp_path: Path) -> None:
    chat = loaded(
        tmp_path, {"chat_template.jinja": "plain", "additional_chat_templates/tool_use.jinja": "tools"}
    )
    assert (chat.render([USER]), chat.render([USER], tools=[{}])) == ("plain", "tools")


def test_named_tokens_are_written_as_strings_or_objects(tmp_path: Path) -> None:
    config = {"chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}", "bos_token": "<s>"}
    maps = {"eos_token": {"content": "</s>"}, "bos_token": "<other>"}
    chat = loaded(tmp_path, {"tokenizer_config.json": config, "special_tokens_map.json": maps})
    assert chat.render([USER]) == "<s></s>"


def test_a_broken_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"tokenizer_config\.json can't be read as JSON"):
        loaded(tmp_path, {"tokenizer_config.json": "{"})
    with pytest.raises(ModelUnavailable, match="must hold a JSON object, not list"):
        loaded(tmp_path, {"tokenizer_config.json": []})


@pytest.mark.parametrize(
    "templates",
    [
        [{"template": "plain"}],
        ["plain"],
        {"default": 5},
        [{"name": "default"}],
        [{"name": 5, "template": "a"}],
    ],
)
def test_templates_in_another_form_are_reported_when_they_are_used(templates: object, tmp_path: Path) -> None:
    chat = loaded(tmp_path, {"tokenizer_config.json": {"chat_template": templates}})
    with pytest.raises(TemplateFailed, match="must be a text, in a list with"):
        chat.render([USER])


@pytest.mark.parametrize("name", ["given.json", "given.jinja"])
def test_a_given_configuration_that_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    config = ModelConfig(tokenizer_config_path=str(tmp_path / name))
    with pytest.raises(
        ModelUnavailable, match=rf"^`tokenizer_config_path`: .*{name} can't be read.*; give an"
    ):
        loaded(tmp_path, {}, config)


@pytest.mark.parametrize("written", [{"bos_token": "<b>"}, {"chat_template": 5}, {"chat_template": None}])
def test_a_given_configuration_without_a_template_is_told(
    written: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = tmp_path / "given.json"
    given.write_text(json.dumps(written))
    files: dict[str, object] = {"tokenizer_config.json": {"chat_template": "own"}}
    chat = loaded(tmp_path, files, ModelConfig(tokenizer_config_path=str(given)))
    assert "own" == chat.render([USER])
    assert [f"`tokenizer_config_path`: {given} has no `chat_template`, so the model's own stays"] == [
        record.getMessage() for record in caplog.records
    ]


@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"])
def test_a_template_that_is_no_text_is_named(name: str, tmp_path: Path) -> None:
    files: dict[str, object] = {"chat_template.jinja": "plain", "additional_chat_templates/a.jinja": "a"}
    loaded(tmp_path, files)
    (tmp_path / name).write_bytes(b"\xff\xfe")
    with pytest.raises(ModelUnavailable, match=rf"{name} can't be read: 'utf-8'"):
        loaded(tmp_path, {})


def test_a_message_nested_too_deeply_is_refused() -> None:
    arguments: dict[str, Any] = {}
    for _ in range(5000):
        arguments = {"a": arguments}
    deep = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    with pytest.raises(TemplateFailed, match="nested too deeply"):
        template(CHATML).render([USER, deep])
