"""The ChatML dialect of the embedded model: its template, and the same rendering in Python for the training loop."""

from __future__ import annotations

import json
from typing import Any

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKERS = ("<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
TOOLS_INTRO = "# Tools\n\nYou may call these functions:\n<tools>\n"
TOOLS_OUTRO = "\n</tools>\n\nTo call one, answer with JSON inside <tool_call></tool_call>."

CHAT_TEMPLATE = """\
{%- macro text(content) %}
{%- if content is string %}{{- content }}
{%- elif content %}{%- for part in content %}{%- if part.type == 'text' %}{{- part.text }}{%- endif %}{%- endfor %}
{%- endif %}
{%- endmacro %}
{%- set first = messages[0] %}
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if first.role == 'system' %}{{- text(first.content) + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n\\nYou may call these functions:\\n<tools>\\n' }}
{%- for tool in tools %}{{- (tool.function if tool.function else tool) | tojson }}{%- if not loop.last %}{{- '\\n' }}{%- endif %}{%- endfor %}
{{- '\\n</tools>\\n\\nTo call one, answer with JSON inside <tool_call></tool_call>.<|im_end|>\\n' }}
{%- elif first.role == 'system' %}
{{- '<|im_start|>system\\n' + text(first.content) + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + text(message.content) + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- elif message.role != 'system' or not loop.first %}
{{- '<|im_start|>' + message.role + '\\n' + text(message.content) }}
{%- for tool_call in message.tool_calls or [] %}
{%- set call = tool_call.function if tool_call.function else tool_call %}
{%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": ' + (call.name | tojson) + ', "arguments": ' }}
{{- call.arguments if call.arguments is string else (call.arguments | tojson) }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

Segment = tuple[str, bool]  # a stretch of text, and whether the model has to write it


def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[Segment]:
    """Render a conversation as the template does, in stretches that the model reads and stretches that it writes."""
    read = ""
    segments: list[Segment] = []
    if tools:
        system = messages[0]["content"] + "\n\n" if messages[0]["role"] == "system" else ""
        listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        read = f"{TURN_START}system\n{system}{TOOLS_INTRO}{listed}{TOOLS_OUTRO}{TURN_END}\n"
        messages = messages[1:] if system else messages
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "assistant":
            segments.append((f"{read}{TURN_START}assistant\n", False))
            segments.append((_written(message) + TURN_END, True))
            read = "\n"
        elif role == "tool":
            read += f"{TURN_START}user\n<tool_response>\n{content}\n</tool_response>{TURN_END}\n"
        else:
            read += f"{TURN_START}{role}\n{content}{TURN_END}\n"
    segments.append((read, False))
    return segments


def prompt(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    """Render a conversation up to where the model's next answer begins."""
    return "".join(text for text, _ in render(messages, tools)) + f"{TURN_START}assistant\n"


def _written(message: dict[str, Any]) -> str:
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ())]
    parts = [message["content"]] if message["content"] else []
    return "\n".join([*parts, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)])
