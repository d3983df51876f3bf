from __future__ import annotations

import pytest

from inference.text.stand_in import CHATML
from inference.tools.formats import Marker, with_tokens
from inference.tools.known_formats import FORMATS, GENERIC, detect
from tests.unit.inference_tools.answers import SPECIAL
from tests.unit.inference_tools.templates import needs_corpus, templates

# The models of the corpus that were trained for one of our formats, by a part of their names
NATIVE = {
    "Qwen2.5-7B-Instruct": "hermes",
    "qwen2.5-instruct": "hermes",
    "Qwen3-0.6B": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Hermes-2-Pro-Llama-3-8B": "hermes",
    "HuggingFaceTB/SmolLM3-3B": "hermes",  # its template tells of the format and shows no calls
    "Bielik-11B-v3.0": "hermes",
    "MiMo-VL": "hermes",
    "Reka-Edge": "hermes",
    "granite-4.": "hermes",
    "granite-3.3": "granite",
    "openai-gpt-oss": "harmony",
    "Qwen3-Coder": "qwen",
    "Qwen3.5-4B": "qwen",
    "Nemotron-3-Nano": "qwen",
    "StepFun3.5": "qwen",
    "Seed-OSS": "seed",
    "GLM-4.6": "glm",
    "ling-3.0": "glm",
    "Laguna-XS": "glm",
    "GLM-4.7": "glm_tight",
    "GLM-5": "glm_tight",
    "Laguna-S-": "glm_tight",
    "Spark2.5": "glm_tight",
    "MiniMax-M3": "minimax_m3",
    "MiniCPM5": "minicpm",
    "tencent-Hy3": "hy3",
    "Apertus-8B": "apertus",
    "GigaChat3.1": "gigachat",
    "MiniMax-M2": "minimax",
    "MiniMax-M1": "minimax_m1",
    "Nemotron-Nano-v2": "nemotron",
    "Apriel-1.": "apriel",
    "Jamba-Large": "jamba",
    "functionary-medium-v3.1": "functionary",
    "Cohere2MoE": "command",
    "command-r7b": "command",
    "command-a-03": "command",
    "DeepSeek-R1": "deepseek",
    "DeepSeek-V3.1": "deepseek_v31",
    "DeepSeek-V3.2": "deepseek_v32",
    "DeepSeek-V4": "deepseek_v4",
    "Kimi-K2": "kimi",
    "LFM2": "lfm2",  # some of its templates tell of tools and show no calls
    "gemma-4": "gemma",
    "Llama-3.1-8B-Instruct": "llama3",
    "Llama-3.2-": "llama3",
    "Mistral-7B-Instruct-v0.3": "mistral",
    "Mistral-Nemo-Instruct-2407": "mistral",
    "Mistral-Small-3.2": "mistral_args",
    "Ministral-3-14B": "mistral_args",
    "Devstral-Small-2507": "mistral_args",
}


@needs_corpus
def test_every_template_of_the_corpus_has_its_models_format() -> None:
    found, expected = {}, {}
    for name, template in templates().items():
        found[name] = detect(template.habits(has_tools=True).sample).name
        expected[name] = next((native for part, native in NATIVE.items() if part in name), "generic")
    assert found == expected
    assert set(found.values()) == set(FORMATS) - {"phi", "llama4", "pythonic", "olmo", "gemma_escape"}


@pytest.mark.parametrize(
    ("sample", "name"),
    [
        ("", "generic"),
        (CHATML, "generic"),
        ('<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>', "hermes"),
        ('<tool_call>{"arguments": {}, "name": "f"}</tool_call>', "hermes"),
        ("<tool_call>\n<function=f>\n<parameter=x>\n1", "qwen"),
        ("<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>", "glm_tight"),
        ("<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", "glm"),
        ('<tool_calls>[{"name": "f", "arguments": {}}]</tool_calls>', "apriel"),
        ('<|tool_call|>[{"name": "f", "arguments": {}}]', "granite"),
        ('<|tool_call|>{"name": "f", "arguments": {}}<|/tool_call|>', "phi"),
        ('<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">', "deepseek_v32"),
        (
            "<｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>",
            "deepseek_v31",
        ),
        ("[f(x='1')]", "pythonic"),
        ('[f(x="1"), g(y=2)]', "generic"),  # as prompts give examples, and no probe is
        ("<|tool_call_start|>[f(x='1')]<|tool_call_end|>", "lfm2"),
        ('List of tools: <|tool_list_start|>[{"name": "f"}]<|tool_list_end|>', "lfm2"),
        ('<function_calls>f(x="1")</function_calls>', "olmo"),
        ("<function_calls>\nf(x='1')\n</function_calls>", "olmo"),
        ('<|tool_call>call:f{x:<|"|>1<|"|>}<tool_call|>', "gemma"),
        ("<start_function_call>call:f{x:<escape>1<escape>}<end_function_call>", "gemma_escape"),
        ('<|python_start|><|python_end|>{"name": "f", "parameters": {}}', "llama4"),
        ('{"name": "f", "description": "d", "parameters": {}}', "generic"),  # a tool, not a call
        ('\n\n{"name": "f", "parameters": {}}', "llama3"),
        ('[TOOL_CALLS] [{"name": "f", "arguments": {}}]', "mistral"),
        ("[TOOL_CALLS]f[CALL_ID]abcdefgh0[ARGS]{}", "mistral_args"),
    ],
)
def test_a_sample_reveals_the_format(sample: str, name: str) -> None:
    assert detect(sample).name == name


def test_markers_that_are_special_tokens_get_their_ids() -> None:
    fmt = with_tokens(FORMATS["mistral_args"], SPECIAL)
    assert {marker.text: marker.id for marker in fmt.markers} == {
        "[TOOL_CALLS]": 2,
        "[ARGS]": 3,
        "[CALL_ID]": 4,
    }
    assert fmt.silent_ids == (0, 1)


def test_the_text_of_other_markers_is_generated() -> None:
    fmt = with_tokens(FORMATS["hermes"], SPECIAL)
    assert fmt.opening == (Marker("<tool_call>"), Marker("\n"))
    assert fmt.silent_ids == (0, 1, 2, 3, 4)


def test_calls_that_need_no_opening_go_without_a_tag_that_is_no_token() -> None:
    assert with_tokens(FORMATS["llama3"], SPECIAL).opening == (Marker("<|python_tag|>", 1),)
    assert with_tokens(FORMATS["llama3"], {}).opening == ()


def test_only_the_generic_format_has_to_be_explained() -> None:
    assert [fmt.name for fmt in FORMATS.values() if not fmt.native] == [GENERIC.name]
