"""Applications over models that write calls in each of the formats; what a model says can be told to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from tokenizers import AddedToken

from handlers.app import create_app
from handlers.http.responses import ContractViolation
from handlers.metrics.metrics import Metrics
from handlers.service import Service
from handlers.settings.table import Settings
from inference.fakes.core import FakeCore, FakeModel
from inference.frontend.client import EngineClient
from inference.text.chat_template import ChatTemplate
from inference.text.pipeline import TextPipeline
from inference.text.stand_in import CHATML, EOS, plausible_tokens, small_tokenizer, stand_in_text
from inference.text.tokenizer import FastTokenizer, TextTokenizer
from inference.thoughts.formats import detect
from inference.tools.formats import ToolFormat
from tests.contract.serving import events_of
from tests.contract.tool_conversations import OF_SOME, SPECIAL, Answer, Json, plain_answer, streamed_answer
from tests.support import serving
from tests.unit.inference_tools.answers import Piece

PATH = "/v1/chat/completions"
CONTEXT_TOKENS = 20_000
NAME, ARGUMENTS = "{{ c.function.name | tojson }}", "{{ c.function.arguments | tojson }}"
EACH, VALUE = "{% for k, v in c.function.arguments | items %}", "{{ v if v is string else v | tojson }}"
CALLS = {  # as the templates of each format write them
    "llama3": f'\n\n{{"name": {NAME}, "parameters": {ARGUMENTS}}}',
    "mistral": f'[TOOL_CALLS] [{{"name": {NAME}, "arguments": {ARGUMENTS}}}]',
    "mistral_args": f"[TOOL_CALLS]{{{{ c.function.name }}}}[ARGS]{ARGUMENTS}",
    "qwen": (
        f"<tool_call>\n<function={{{{ c.function.name }}}}>\n{EACH}<parameter={{{{ k }}}}>\n{VALUE}"
        "\n</parameter>\n{% endfor %}</function>\n</tool_call>"
    ),
    "glm": (
        f"<tool_call>{{{{ c.function.name }}}}\n{EACH}<arg_key>{{{{ k }}}}</arg_key>\n<arg_value>{VALUE}"
        "</arg_value>\n{% endfor %}</tool_call>"
    ),
    "deepseek_v32": (
        f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="{{{{ c.function.name }}}}">\n{EACH}'
        f'<｜DSML｜parameter name="{{{{ k }}}}" string="true">{VALUE}</｜DSML｜parameter>\n{{% endfor %}}'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    ),
    "pythonic": f"[{{{{ c.function.name }}}}({EACH}{{{{ k }}}}={{{{ v | tojson }}}}{{% endfor %}})]",
    "gemma": (
        f"<|tool_call>call:{{{{ c.function.name + '{{' }}}}{EACH}"
        '{{ k }}:<|"|>{{ v }}<|"|>{% endfor %}}<tool_call|>'
    ),
}
MODELS = ("hermes", "generic", *CALLS)
TOKENS = {
    "glm": OF_SOME[:1],
    "deepseek_v32": OF_SOME[1:2],
    "gemma": OF_SOME[2:],
}  # special ones that the others don't have


@dataclass(slots=True)
class Script:
    """What the engine says next; None: whatever comes to it."""

    ids: Sequence[int] | None = None


@dataclass(slots=True)
class ToolModel:
    """A running application, and the loop that it runs on."""

    format: ToolFormat
    http: httpx.AsyncClient
    tokenizer: TextTokenizer
    script: Script
    loop: asyncio.AbstractEventLoop

    def say(self, pieces: Sequence[Piece] | None) -> None:
        """Set what the model says next: texts and special tokens, or None for whatever comes to it."""
        if pieces is None:
            self.script.ids = None
            return
        encode = self.tokenizer.encode
        self.script.ids = [
            token_id
            for piece in pieces
            for token_id in ([piece] if isinstance(piece, int) else encode(piece, add_special_tokens=False))
        ]

    def ask(self, body: Json) -> tuple[Answer, Answer]:
        """Return the answer, whole and streamed."""
        whole = self.loop.run_until_complete(self.http.post(PATH, json=body))
        assert whole.status_code == 200, whole.text
        (choice,) = whole.json()["choices"]
        stream = self.loop.run_until_complete(self.http.post(PATH, json={**body, "stream": True}))
        assert stream.status_code == 200, stream.text
        *chunks, done = events_of(stream)
        assert done == "[DONE]"
        return plain_answer(choice), streamed_answer([part for chunk in chunks for part in chunk["choices"]])


@contextmanager
def tool_model(name: str) -> Iterator[ToolModel]:
    """Run an application over a model of a format; raises AssertionError where it broke the contract."""
    script = Script()
    engine, tokenizer = engine_for(name, script)
    service = Service(Settings(validate_responses=True), engine, Metrics())
    violations: list[ContractViolation] = []
    loop = asyncio.new_event_loop()
    running = serving(create_app(service, report=violations.append), service)
    http = loop.run_until_complete(running.__aenter__())
    try:
        assert engine.tool_format.name == name
        yield ToolModel(engine.tool_format, http, tokenizer, script, loop)
    finally:
        loop.run_until_complete(running.__aexit__(None, None, None))
        loop.close()
    assert violations == []


def engine_for(name: str, script: Script) -> tuple[EngineClient, TextTokenizer]:
    """Return a fake engine whose chat template has the calls of a format."""
    if name == "hermes":
        tokenizer, template, eos = stand_in_text()
    else:
        small = small_tokenizer()
        small.add_special_tokens(
            [AddedToken(text, special=True) for text in (*SPECIAL, *TOKENS.get(name, ()))]
        )
        tokenizer = FastTokenizer(small)
        template = ChatTemplate({"default": source(name)}, {})
        (eos,) = tokenizer.encode(EOS, add_special_tokens=False)
    core = FakeCore(
        FakeModel(
            tokens=plausible_tokens(tokenizer),
            eos_token_id=eos,
            texts=tuple(map(tokenizer.token_text, range(tokenizer.vocabulary_size))),
            max_input_tokens=CONTEXT_TOKENS - 1,
            max_total_tokens=CONTEXT_TOKENS,
            script=lambda request: script.ids,
        )
    )
    pipeline = TextPipeline(tokenizer, template, workers=1)
    pipeline.thought_format = detect(["</think>"], {})
    return EngineClient(core, Settings().engine_config(), lambda: pipeline), tokenizer


def source(name: str) -> str:
    """Return a chat template that shows tools and calls, or one that knows neither."""
    if name not in CALLS:
        return CHATML
    calls = "{% for c in m.tool_calls or [] %}" + CALLS[name] + "{% endfor %}"
    return (
        "{% if tools %}{{ tools | tojson }}{% endif %}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}" + calls + "{% endfor %}"
    )
