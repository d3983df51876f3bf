"""The table of settings: each field of `Settings` is a row.

The command line, the environment variables, docs/settings.md and every default come from here. Names and
meanings are those of TGI 3.3's launcher; rows with `tgi=False` are Parley's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from handlers.keys import MAX_RATE
from handlers.serving.logs import directives
from handlers.settings import effects as effects
from handlers.settings.engine import engine_config
from handlers.settings.row import (
    BYTES,
    COUNT,
    DAY,
    LARGEST_BATCH,
    PORT,
    TEXT_TOKENS,
    TIMEOUT,
    TOKENS,
    Group,
    Setting,
    Support,
    adapter_list,
    batch_sizes,
    bearer_key,
    boolean,
    cache_type,
    choice,
    decimal,
    endpoint,
    header_text,
    integer,
    origin_list,
    quantization,
    route,
    row,
    rows_of,
    text,
)
from handlers.settings.switches import SwitchSettings
from inference.config import EngineConfig

MODEL, ENGINE, HTTP = Group.MODEL, Group.ENGINE, Group.HTTP
LOGS, DEVICES = Group.LOGS, Group.DEVICES
ACCEPTED, LATER = Support.ACCEPTED, Support.LATER
THREADS = integer(1, 1024)
RATE = integer(1, MAX_RATE)
LOCAL_SHARDS = "shards find each other by themselves"
PROXY = "put a proxy in front of the port, or run ngrok beside it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(SwitchSettings):
    """What the server is started with; `Settings()` holds every default."""

    # fmt: off
    model_id: str | None = row(None, text, MODEL,
        "hub id or local directory; unset: the small model that ships with Parley",
        env=("MODEL_ID", "HF_MODEL_ID"))
    revision: str | None = row(None, text, MODEL,
        "branch, tag or commit of the model on the hub", env=("REVISION", "HF_MODEL_REVISION"),
        effect=effects.OF_THE_HUB)
    dtype: str = row("auto", choice("auto", "float32", "float16", "bfloat16"), MODEL,
        "number type of the weights. auto: on a CPU as they are stored, multiplied in float32 without "
        "rounding; on a GPU 16 bits. float32: the same on a CPU. bfloat16: rounds weights, and on CPUs with "
        "AVX-512 BF16 or AMX also what they are multiplied by, which is faster there. float16: on a CPU "
        "rounds weights only", metavar="TYPE")
    device: str = row("auto", choice("auto", "cpu", "cuda"), MODEL,
        "cpu, cuda, or auto: a GPU where there is one", tgi=False)
    trust_remote_code: bool = row(False, boolean, MODEL,
        "run the Python code that comes with the model if transformers lacks its architecture, and read "
        "pickled weights (`*.bin`), which can run code, too",
        env=("TRUST_REMOTE_CODE", "HF_MODEL_TRUST_REMOTE_CODE"), effect=effects.OF_OTHERS)
    tokenizer_config_path: str | None = row(None, text, MODEL,
        "file to take the chat template from, instead of the model's tokenizer_config.json", metavar="FILE")
    huggingface_hub_cache: str | None = row(None, text, MODEL,
        "folder of the hub's cache; unset: as huggingface_hub decides (HF_HOME)", metavar="FOLDER")
    hf_token: str | None = row(None, text, MODEL,
        "the hub's token, for private and gated models", flags=(),
        env=("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN"), secret=True)
    weights_cache_override: str | None = row(None, text, MODEL,
        "TGI: folder that holds the weights", support=ACCEPTED, reason="give that folder as --model-id",
        metavar="FOLDER")
    quantize: str | None = row(None, quantization, MODEL,
        "int8: keep the weights in 8 bits, and on a CPU multiply so, too: smaller, faster, and answers "
        "change a little. bitsandbytes-nf4: keep them in 4 bits. TGI's other methods (gptq, awq) name what "
        "the files hold: see docs/quantised.md. none, or unset: round nothing",
        env=("QUANTIZE", "HF_MODEL_QUANTIZE"), metavar="METHOD")
    kv_cache_dtype: str = row("auto", cache_type, MODEL,
        "number type of the KV cache: float32, or bfloat16, which takes half the memory, is read faster, and "
        "rounds. auto: on a CPU float32, or bfloat16 where --dtype bfloat16 or --quantize int8 round; on a "
        "GPU the type that is computed in", metavar="TYPE")
    rope_scaling: str | None = row(None, text, MODEL,
        "TGI: scaling of rotary embeddings", support=LATER,
        reason="write rope_scaling into the model's config.json", metavar="KIND")
    rope_factor: float | None = row(None, decimal(0, 1_000_000, above=True), MODEL,
        "TGI: its factor", support=LATER, neutral=(1.0,), reason="write rope_scaling into config.json")
    lora_adapters: tuple[str, ...] = row((), adapter_list, MODEL,
        "LoRA adapters to load beside the model, for requests that name one by `adapter_id` or as `model`; "
        "a list of hub ids, or name=directory, each with @revision if need be", metavar="ADAPTERS")
    lora_directory: str | None = row(None, text, MODEL,
        "folder below which clients may load more LoRA adapters while the server runs, by "
        "`/v1/load_lora_adapter`: see docs/adapters.md. Unset: none", metavar="FOLDER", tgi=False)
    lora_memory: int = row(1_073_741_824, BYTES, MODEL,
        "memory that is kept for these adapters, all of them together", unit="bytes", tgi=False,
        effect=effects.LATER_ADAPTERS)
    speculate: int | None = row(None, integer(0, 1_000_000), MODEL,
        "most tokens that are guessed ahead, on a CPU. A guess is what followed the same words earlier in "
        "the prompt or the answer; a right one saves a step, so texts that repeat themselves come faster. "
        "Where /info says `deterministic` no answer changes; elsewhere as little as other requests change "
        "one. Unset: no guesses",
        unit="tokens", effect=effects.GUESSED)

    max_concurrent_requests: int = row(128, COUNT, ENGINE,
        "most requests in flight; each prompt, each of `n` and each candidate of `best_of` counts as one. "
        "One more is refused with 429 (529 on `/v1/messages`), one that counts as more than all by itself "
        "with 422 (400)", unit="requests")
    max_concurrent_requests_per_key: int | None = row(None, COUNT, ENGINE,
        "most requests in flight of one API key, counted as for --max-concurrent-requests; several "
        "--replicas share it out among them; unset: only the limit of all holds", unit="requests", tgi=False,
        effect=effects.BELOW_ALL)
    max_input_tokens: int | None = row(None, TOKENS, ENGINE,
        "longest prompt; unset: one token less than --max-total-tokens, or less if the model has to read "
        "prompts in one piece and memory is short",
        flags=("--max-input-tokens", "--max-input-length"), env=("MAX_INPUT_TOKENS", "MAX_INPUT_LENGTH"),
        exclusive=True, unit="tokens")
    max_total_tokens: int | None = row(None, TEXT_TOKENS, ENGINE,
        "longest prompt and its answer together; unset: as long as the model and the memory allow",
        unit="tokens")
    max_batch_prefill_tokens: int | None = row(None, TOKENS, ENGINE,
        "most tokens that one step computes; longer prompts are read in pieces, over several steps. If the "
        "model has to read prompts in one piece, it is also the longest prompt. Unset, on a CPU: one for "
        "each text, and a piece of a prompt that takes about 0.15 s, but at most 160 tokens if these take "
        "over 0.05 s; on a GPU: 2,048, and up to 16,384 if a model computes them in about 0.025 s",
        unit="tokens")
    prefill_chunk_tokens: int | None = row(None, TOKENS, ENGINE,
        "most prompt tokens in a step that other texts wait for to go on: a smaller number makes streams "
        "steadier and first tokens later. A step may have three for each text in any case, and has no such "
        "limit if four prompts wait for each text. Unset: computed", unit="tokens", tgi=False)
    max_batch_total_tokens: int | None = row(None, TOKENS, ENGINE,
        "size of the KV cache, in tokens of all running and cached texts together. More than memory has "
        "room for becomes what it has. Unset: what --max-batch-size texts of the longest length need, but "
        "on a CPU at most a quarter of the memory that the weights leave, and no more than the weights' own "
        "size or 2 GiB, whichever is larger; on a GPU at most what is left, as measured at the start",
        unit="tokens")
    max_batch_size: int | None = row(None, integer(1, LARGEST_BATCH), ENGINE,
        "most texts that one step computes; unset: 32 on a CPU, 256 on a GPU", unit="sequences")
    validation_workers: int = row(2, THREADS, ENGINE, "threads that turn texts into tokens", unit="threads")
    compute_threads: int | None = row(None, THREADS, ENGINE,
        "threads that compute on the CPU; unset: one for each core", unit="threads", tgi=False)
    engine_process: bool = row(True, boolean, ENGINE,
        "run the engine in a process of its own, so that HTTP and the model don't wait for each other",
        tgi=False)
    step_timeout: float | None = row(None, decimal(1, DAY, zero=True), ENGINE,
        "longest that one step of the engine may take; then its process is killed and started again. 0: no "
        "limit. Unset: 60, or 20 times what the longest step should take if that is more", unit="seconds",
        tgi=False, effect=effects.ENGINE_APART)
    max_engine_restarts: int = row(5, integer(0, 1_000_000), ENGINE,
        "times that the engine's process is started again, in a row and without a token served between, "
        "before the server gives it up and ends with exit code 1; 0: any number", unit="restarts",
        tgi=False, effect=effects.ENGINE_RESTARTED)
    prefix_caching: bool = row(True, boolean, ENGINE,
        "keep what was computed for prompts and answers, so that a request that begins like an earlier one "
        "starts sooner; it changes no answer",
        env=("PREFIX_CACHING", "USE_PREFIX_CACHING"))
    prefix_cache_scope: str = row("auto", choice("auto", "all", "key"), ENGINE,
        "who shares what --prefix-caching keeps. all: everybody; key: each API key has its own, so that the "
        "time to an answer tells nobody what others asked; auto: key if there is an --api-keys-file, all "
        "otherwise", tgi=False, effect=effects.CACHED)
    waiting_served_ratio: float = row(0.3, decimal(0, 1_000_000), ENGINE,
        "TGI: when waiting requests interrupt running ones", support=ACCEPTED,
        reason="every step has room for both, within its token budget")
    max_waiting_tokens: int = row(20, integer(0, 2**31 - 1), ENGINE,
        "TGI: steps that waiting requests are kept back", support=ACCEPTED,
        reason="every step has room for both, within its token budget", unit="tokens")
    prefill_chunking: str | None = row(None, text, ENGINE,
        "TGI: split long prompts over steps", flags=(), support=ACCEPTED,
        reason="a prompt longer than a step's token budget is split wherever the model allows it")

    hostname: str = row("0.0.0.0", text, HTTP,
        "address to listen on; `::` is all of IPv6 and IPv4. The variable counts only if it is an IP "
        "address, as containers put their own name there", metavar="ADDRESS")
    port: int = row(3000, PORT, HTTP, "port to listen on", short="-p", winning_env="AIP_HTTP_PORT")
    prometheus_port: int | None = row(None, PORT, HTTP,
        "second port that serves /metrics; the first one serves it always", metavar="PORT")
    api_key: str | None = row(None, bearer_key, HTTP,
        "key that clients have to send, as `Authorization: Bearer KEY`, or on `/v1/messages` and below it "
        "as `x-api-key: KEY`. Unset, and without --api-keys-file, no key is asked for", secret=True,
        empty_is_unset=False, metavar="KEY")
    api_keys_file: str | None = row(None, text, HTTP,
        "file of up to 100,000 more keys, as digests, each with a name, scopes and rates of its own; read "
        "again when it changes: see SECURITY.md", metavar="FILE", tgi=False)
    requests_per_minute: int | None = row(None, RATE, HTTP,
        "most requests in a minute of each named key of --api-keys-file, unless the file says another "
        "number, and of everyone else together; one more is refused with 429; several --replicas share it "
        "out among them; unset: any number",
        unit="requests", tgi=False)
    tokens_per_minute: int | None = row(None, RATE, HTTP,
        "most tokens in a minute, counted for the same keys: those of answers, and those of prompts once "
        "for each text; several --replicas share it out among them; unset: any number", unit="tokens",
        tgi=False)
    max_connections: int = row(4096, COUNT, HTTP,
        "most open connections of one API worker, or fewer if the system's limit of open files leaves room "
        "for fewer. For one more, a connection without a request is closed; if there is none, the new one "
        "is told 503, but a probe is answered",
        unit="connections", tgi=False)
    header_limit: int = row(65_536, integer(1024, 262_144), HTTP,
        "largest request line with all headers; more is refused with 431", unit="bytes", tgi=False)
    max_headers: int = row(128, integer(16, 10_000), HTTP,
        "most request headers; more is refused with 431", unit="headers", tgi=False)
    header_timeout: float = row(20.0, TIMEOUT, HTTP,
        "longest that a request's headers may take to arrive; then the connection is closed",
        unit="seconds", tgi=False)
    body_timeout: float = row(60.0, TIMEOUT, HTTP,
        "longest that a request's body may take to arrive; then the answer is 408", unit="seconds", tgi=False)
    write_timeout: float = row(30.0, TIMEOUT, HTTP,
        "longest that a client may read nothing of what it is sent; then the connection is cut",
        unit="seconds", tgi=False)
    stream_buffer: int = row(1_048_576, BYTES, HTTP,
        "most of a stream that is kept for a client that reads slowly; beyond it the request is ended",
        unit="bytes", tgi=False)
    cors_allow_origin: tuple[str, ...] = row(("*",), origin_list, HTTP,
        "origin whose pages may call the server from a browser, such as https://app.example.org; may be "
        "repeated",
        metavar="ORIGIN")
    graceful_termination_timeout: int = row(90, integer(0, DAY), HTTP,
        "time that running requests have to end after SIGTERM", short="-g", unit="seconds")
    api_workers: int = row(1, integer(1, 256), HTTP,
        "processes that handle HTTP and tokenise; all of them use one engine, which is a process of its own",
        unit="processes",
        env=("PARLEY_API_WORKERS", "API_WORKERS"), tgi=False)
    replicas: int = row(1, integer(1, 1024), HTTP,
        "servers with an engine each that Ray Serve starts, on the machines of its cluster; this one passes "
        "requests on to them; needs the extra `ray`", unit="servers", tgi=False)
    prefix_affinity: bool = row(True, boolean, HTTP,
        "several replicas: send a prompt to the one that has its beginning in its cache, unless that one is "
        "much busier",
        tgi=False, effect=effects.SEVERAL_REPLICAS)
    worker_timeout: float = row(60.0, decimal(1.5, DAY, zero=True), HTTP,
        "several API workers: longest that one may stand still before it is killed and replaced; 0: any "
        "time", unit="seconds", tgi=False, effect=effects.SEVERAL_WORKERS)
    keep_alive_seconds: int = row(15, integer(1, DAY), HTTP,
        "how often a stream that has nothing new to say sends a comment, so that proxies keep it open",
        unit="seconds", tgi=False)
    compute_type: str = row("cpu+optimized", header_text, HTTP,
        "value of the response header x-compute-type; on a GPU `1-` and the GPU's name, unless given",
        metavar="TEXT")
    docker_label: str | None = row(None, text, HTTP,
        "label shown by /info and in `system_fingerprint`", metavar="LABEL")
    validate_responses: bool = row(False, boolean, HTTP,
        "check responses against the OpenAPI document, too, for tests of Parley itself; slow", tgi=False)
    aip_predict_route: str | None = row(None, route, HTTP,
        "Vertex AI: one more route of predictions, beside /vertex", flags=(), metavar="PATH")
    aip_health_route: str | None = row(None, route, HTTP,
        "Vertex AI: one more route of the health check, beside /health", flags=(), metavar="PATH")
    ngrok: bool = row(False, boolean, HTTP, "TGI: open a tunnel to the server", support=LATER, reason=PROXY)
    ngrok_authtoken: str | None = row(None, text, HTTP,
        "TGI: token of the tunnel's account", support=ACCEPTED, reason=PROXY, secret=True, metavar="TOKEN")
    ngrok_edge: str | None = row(None, text, HTTP,
        "TGI: the tunnel's address", support=ACCEPTED, reason=PROXY, metavar="EDGE")

    json_output: bool = row(False, boolean, LOGS, "write logs as JSON lines")
    log_level: str = row("info", directives, LOGS,
        "trace, debug, info, warn, error or off; or a list such as `info,uvicorn=debug`", metavar="LEVEL")
    log_colorize: bool | None = row(None, boolean, LOGS,
        "colour the logs; without it on a terminal only", flags=())
    log_format: str | None = row(None, text, LOGS,
        "TGI: format of the logs", flags=(), support=ACCEPTED, reason="JSON_OUTPUT=true asks for JSON lines",
        neutral=("default",))
    log_prompts: bool = row(False, boolean, LOGS,
        "show prompts and answers in the log and in traces, and the messages of exceptions, which may quote "
        "them, in the log", tgi=False)
    otlp_endpoint: str | None = row(None, endpoint, LOGS,
        "where traces are sent, by OTLP over gRPC, such as http://collector:4317; needs the extra `traces`",
        metavar="URL")
    otlp_service_name: str = row("text-generation-inference.router", text, LOGS,
        "name of the service in traces", metavar="NAME", effect=effects.TRACED)
    usage_stats: str = row("off", choice("on", "no-stack", "off"), LOGS,
        "TGI: telemetry", support=ACCEPTED, reason="nothing is ever sent")

    num_shard: int = row(1, integer(1, 64), DEVICES,
        "processes that one model is divided among, each with a part of every layer, of the cores and of "
        "the memory; on CPUs only",
        env=("NUM_SHARD", "SM_NUM_GPUS"), unit="shards")
    sharded: bool | None = row(None, boolean, DEVICES,
        "false: one process, whatever --num-shard says; true: end the start if there is only one")
    cuda_memory_fraction: float = row(1.0, decimal(0, 1, above=True), DEVICES,
        "share of a GPU's memory that Parley may take for weights, steps and KV cache together; what steps "
        "and CUDA graphs need is measured at the start, and 2 % are kept in reserve", effect=effects.ON_GPU)
    tgi_wiggle_room: float | None = row(None, decimal(0, 1, above=True), DEVICES,
        "TGI: share of the free memory to use", flags=(), support=ACCEPTED,
        reason="--max-batch-total-tokens sets the KV cache's size")
    cuda_graphs: tuple[int, ...] | None = row(None, batch_sizes, DEVICES,
        "batch sizes whose steps are recorded as CUDA graphs, such as 1,2,4,8; 0: none; unset: 1, 2, 4, 8, "
        "16, 24 and so on up to --max-batch-size", metavar="SIZES", effect=effects.FASTER_ON_GPU)
    deterministic: bool = row(False, boolean, DEVICES,
        "on a GPU, compute each token to the same bits in any batch; slower. On a CPU that is so without "
        "it, wherever /info says `deterministic`", tgi=False)
    disable_custom_kernels: bool = row(False, boolean, DEVICES,
        "TGI: go without its kernels", support=ACCEPTED,
        reason="none of them is used; --native-kernels false goes without Parley's own")
    attention: str | None = row(None, text, DEVICES,
        "TGI: implementation of attention", flags=(), support=ACCEPTED, reason="the device decides")
    use_flash_attention: str | None = row(None, text, DEVICES,
        "TGI: use flash attention", flags=(), support=ACCEPTED, reason="the device decides")
    shard_uds_path: str | None = row(None, text, DEVICES,
        "TGI: sockets of its shards", support=ACCEPTED, reason=LOCAL_SHARDS, metavar="PATH")
    master_addr: str = row("localhost", text, DEVICES,
        "address of the server that shards on other machines connect to", metavar="HOST",
        effect=effects.SHARDS_ELSEWHERE)
    master_port: int = row(29500, PORT, DEVICES, "port that they connect to", metavar="PORT",
        effect=effects.SHARDS_ELSEWHERE)
    remote_shards: int = row(0, integer(0, 63), DEVICES,
        "how many of --num-shard run on other machines, each started there by `parley shard`",
        unit="shards", tgi=False, effect=effects.SEVERAL_SHARDS)
    # fmt: on

    def engine_config(self) -> EngineConfig:
        """Return the part that the engine is started with."""
        return engine_config(self)


SETTINGS: tuple[Setting[Any], ...] = rows_of(Settings)
