"""The table of settings: each field of `Settings` is a row.

The command line, the environment variables, docs/settings.md and every default come from here. Names and
meanings are those of TGI 3.3's launcher; rows with `tgi=False` are Parley's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from handlers import settings_effects as effects
from handlers.engine_settings import engine_config
from handlers.keys import MAX_RATE
from handlers.logs import directives
from handlers.settings_requests import RequestSettings
from handlers.settings_table import (
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
from inference.config import EngineConfig

MODEL, ENGINE, HTTP = Group.MODEL, Group.ENGINE, Group.HTTP
LOGS, DEVICES = Group.LOGS, Group.DEVICES
ACCEPTED, LATER = Support.ACCEPTED, Support.LATER
THREADS = integer(1, 1024)
RATE = integer(1, MAX_RATE)
LOCAL_SHARDS = "shards find each other by themselves"
PROXY = "put a proxy in front of the port, or run ngrok beside it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(RequestSettings):
    """What the server is started with; `Settings()` holds every default."""

    # fmt: off
    model_id: str | None = row(None, text, MODEL,
        "hub id or local directory; without it the model that ships with Parley is served",
        env=("MODEL_ID", "HF_MODEL_ID"))
    revision: str | None = row(None, text, MODEL,
        "branch, tag or commit of the model on the hub", env=("REVISION", "HF_MODEL_REVISION"),
        effect=effects.OF_THE_HUB)
    dtype: str = row("auto", choice("auto", "float32", "float16", "bfloat16"), MODEL,
        "type of the weights; auto: on CPU as they are stored, computed in float32, and on a GPU 16 bits; "
        "on CPU float32 is the same, bfloat16 and float16 round", metavar="TYPE")
    device: str = row("auto", choice("auto", "cpu", "cuda"), MODEL,
        "where the model runs; auto: an accelerator where there is one", tgi=False)
    trust_remote_code: bool = row(False, boolean, MODEL,
        "run the Python code that comes with the model where transformers doesn't have its architecture, and "
        "read pickled weights",
        env=("TRUST_REMOTE_CODE", "HF_MODEL_TRUST_REMOTE_CODE"), effect=effects.OF_OTHERS)
    tokenizer_config_path: str | None = row(None, text, MODEL,
        "file to take the chat template from, in place of the model's tokenizer_config.json", metavar="FILE")
    huggingface_hub_cache: str | None = row(None, text, MODEL,
        "folder of the hub's cache; without it huggingface_hub decides (HF_HOME)", metavar="FOLDER")
    hf_token: str | None = row(None, text, MODEL,
        "the hub's token, for private and gated models", flags=(),
        env=("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN"), secret=True)
    weights_cache_override: str | None = row(None, text, MODEL,
        "TGI: folder that holds the weights", support=ACCEPTED, reason="give that folder as --model-id",
        metavar="FOLDER")
    quantize: str | None = row(None, quantization, MODEL,
        "int8: keep and multiply the weights in 8 bits, on CPU, faster, a little changed; TGI's methods: "
        "docs/quantised.md; none: don't", env=("QUANTIZE", "HF_MODEL_QUANTIZE"), metavar="METHOD")
    kv_cache_dtype: str = row("auto", cache_type, MODEL,
        "type of the KV cache: float32, or bfloat16, which holds twice the tokens and is read faster; auto: "
        "bfloat16 only where the model computes with rounded numbers anyway", metavar="TYPE")
    rope_scaling: str | None = row(None, text, MODEL,
        "TGI: scaling of rotary embeddings", support=LATER,
        reason="write rope_scaling into the model's config.json", metavar="KIND")
    rope_factor: float | None = row(None, decimal(0, 1_000_000, above=True), MODEL,
        "TGI: its factor", support=LATER, neutral=(1.0,), reason="write rope_scaling into config.json")
    lora_adapters: tuple[str, ...] = row((), adapter_list, MODEL,
        "LoRA adapters to load beside the model, for requests that name them by `adapter_id` or as `model`: "
        "hub ids, or name=directory, each with @revision if need be", metavar="ADAPTERS")
    speculate: int | None = row(None, integer(0, 1_000_000), MODEL,
        "most tokens that are guessed to follow a text, and computed with its newest one, on CPU: where it "
        "repeats what came before, a step gives several of them; it changes no answer where /info says "
        "`deterministic`, and else no more than other requests beside it; without it none",
        unit="tokens", effect=effects.GUESSED)

    max_concurrent_requests: int = row(128, COUNT, ENGINE,
        "requests in flight, counting each prompt, each of `n` and each candidate of `best_of`; one more is "
        "refused with 429, one that has more with 422; on `/v1/messages` with 529 and 400", unit="requests")
    max_concurrent_requests_per_key: int | None = row(None, COUNT, ENGINE,
        "requests in flight of one API key, counted in the same way; without it as many as of all; of "
        "several API workers each gives its share", unit="requests", tgi=False)
    max_input_tokens: int | None = row(None, TOKENS, ENGINE,
        "longest prompt; without it the longest total less one, or what there is "
        "memory for where a model reads prompts at once",
        flags=("--max-input-tokens", "--max-input-length"), env=("MAX_INPUT_TOKENS", "MAX_INPUT_LENGTH"),
        exclusive=True, unit="tokens")
    max_total_tokens: int | None = row(None, TEXT_TOKENS, ENGINE,
        "longest prompt with its answer; without it what the model and the memory allow", unit="tokens")
    max_batch_prefill_tokens: int | None = row(None, TOKENS, ENGINE,
        "most tokens of one step, and of a prompt that a model reads at once; without it one for each "
        "sequence, and pieces of prompts that take about "
        "0.15 s, but no more than 160 tokens if those take over 0.05 s; on a GPU 2,048, and up to 16,384 of "
        "models that compute them in about 0.025 s", unit="tokens")
    prefill_chunk_tokens: int | None = row(None, TOKENS, ENGINE,
        "most prompt tokens of a step in which texts go on, which wait for it "
        "(at least three for each text; without a limit where four prompts wait for each); "
        "computed without it", unit="tokens", tgi=False)
    max_batch_total_tokens: int | None = row(None, TOKENS, ENGINE,
        "size of the KV cache; without it what all sequences of a step can use, on CPU no more than the "
        "weights' size, or 2 GiB, and a quarter of the free memory, on a GPU what was measured to be left",
        unit="tokens")
    max_batch_size: int | None = row(None, integer(1, LARGEST_BATCH), ENGINE,
        "most sequences of one step; without it 32 on CPU, 256 on a GPU", unit="sequences")
    validation_workers: int = row(2, THREADS, ENGINE, "threads that tokenise", unit="threads")
    compute_threads: int | None = row(None, THREADS, ENGINE,
        "threads that compute on the CPU; without it one for each core", unit="threads", tgi=False)
    engine_process: bool = row(True, boolean, ENGINE,
        "run the engine in a process of its own, so that HTTP and model don't wait for each other", tgi=False)
    step_timeout: float | None = row(None, decimal(1, DAY, zero=True), ENGINE,
        "longest that a step of the engine may take, after which its process is killed and started again; 0: "
        "never; without it 60, or 20 times what the longest step is estimated to take", unit="seconds",
        tgi=False, effect=effects.ENGINE_APART)
    max_engine_restarts: int = row(5, integer(0, 1_000_000), ENGINE,
        "times that the engine's process is started again, in a row and without a token served between, "
        "before the server gives it up and ends with exit code 1; 0: any number", unit="restarts",
        tgi=False, effect=effects.ENGINE_RESTARTED)
    prefix_caching: bool = row(True, boolean, ENGINE,
        "keep keys and values of prompts and answers for requests that begin alike; it changes no answer",
        env=("PREFIX_CACHING", "USE_PREFIX_CACHING"))
    prefix_cache_scope: str = row("auto", choice("auto", "all", "key"), ENGINE,
        "whose requests share it: all, or those of one API key, so that the time to an answer tells nobody "
        "what another has asked; auto: key where there is an --api-keys-file", tgi=False,
        effect=effects.CACHED)
    cpu_isa: str = row("auto", choice("auto", "amx", "avx512", "avx2", "baseline"), ENGINE,
        "instructions that the CPU's kernels use; auto: the best that the CPU has", tgi=False,
        effect=effects.ON_CPU)
    native_kernels: bool = row(True, boolean, ENGINE,
        "compute linears and attention on the CPU, and whole layers on a GPU, by Parley's own kernels, not "
        "torch's", tgi=False)
    fuse_layers: bool = row(True, boolean, ENGINE,
        "compute whole layers by one call on the CPU, and by a few kernels on a GPU, and texts behind an "
        "encoder in batches, where that gives the model's own results", tgi=False)
    narrow_weights: bool = row(True, boolean, ENGINE,
        "keep float32 weights on the CPU in 16 bits where these hold them exactly; what --dtype bfloat16 or "
        "--quantize rounds is small in any case", tgi=False, effect=effects.ON_CPU)
    compress_weights: bool = row(True, boolean, ENGINE,
        "keep bfloat16 weights on the CPU in 12 bits where these hold them exactly: less to read, the same "
        "results; needs AVX2", tgi=False, effect=effects.ON_CPU)
    screen_head: bool = row(True, boolean, ENGINE,
        "keep a copy of the head in 8 or 6 bits on the CPU, by which the likeliest tokens are found in steps "
        "whose requests are all greedy, without grammars, and get no log-probabilities, as TGI's streams "
        "do: less to read, the same tokens; needs VNNI, or AVX2 without AVX-512; of a head in 8 bits VNNI",
        tgi=False, effect=effects.ON_CPU)
    trim_last_layer: bool = row(True, boolean, ENGINE,
        "leave out of the last fused layer all but keys and values of tokens without logits", tgi=False)
    prefault_cache: bool = row(True, boolean, ENGINE,
        "find memory for the KV cache's pages while nothing is computed", tgi=False, effect=effects.ON_CPU)
    merge_linears: bool = row(True, boolean, ENGINE, "compute a layer's parallel linears as one", tgi=False)
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
        "address to listen on, `::` for all of IPv6 and IPv4; from the environment only an IP address "
        "counts, as containers put their own name there", metavar="ADDRESS")
    port: int = row(3000, PORT, HTTP, "port to listen on", short="-p", winning_env="AIP_HTTP_PORT")
    prometheus_port: int | None = row(None, PORT, HTTP,
        "second port to serve /metrics on; the first one serves it always", metavar="PORT")
    api_key: str | None = row(None, bearer_key, HTTP,
        "key that inference routes ask for as `Authorization: Bearer KEY`; on `/v1/messages` and below it "
        "`x-api-key: KEY` does as well", secret=True,
        empty_is_unset=False, metavar="KEY")
    api_keys_file: str | None = row(None, text, HTTP,
        "file of up to 100,000 more keys, as digests with names, scopes and rates; read again when it "
        "changes: see SECURITY.md", metavar="FILE", tgi=False)
    requests_per_minute: int | None = row(None, RATE, HTTP,
        "requests of one named key of --api-keys-file in a minute, and of everyone else's together; one more "
        "is refused with 429; without it any number", unit="requests", tgi=False)
    tokens_per_minute: int | None = row(None, RATE, HTTP,
        "tokens in the same way, those of answers and those of prompts, once for each text", unit="tokens",
        tgi=False)
    max_connections: int = row(4096, COUNT, HTTP,
        "connections of one API worker, or what its limit of open files leaves room for; one that has no "
        "request in work is closed for one more; where all have, that is told 503, but a probe is answered",
        unit="connections", tgi=False)
    header_limit: int = row(65_536, integer(1024, 262_144), HTTP,
        "largest request line with all headers; more is refused with 431", unit="bytes", tgi=False)
    max_headers: int = row(128, integer(16, 10_000), HTTP,
        "most request headers; more is refused with 431", unit="headers", tgi=False)
    header_timeout: float = row(20.0, TIMEOUT, HTTP,
        "longest that the headers of a request may take to come, after which the connection is closed",
        unit="seconds", tgi=False)
    body_timeout: float = row(60.0, TIMEOUT, HTTP,
        "longest that a request body may take to come; then the answer is 408", unit="seconds", tgi=False)
    write_timeout: float = row(30.0, TIMEOUT, HTTP,
        "longest that a client may read nothing of what it was sent, after which the connection is cut",
        unit="seconds", tgi=False)
    stream_buffer: int = row(1_048_576, BYTES, HTTP,
        "most of a stream that waits for a client that reads slowly; then the request is ended",
        unit="bytes", tgi=False)
    cors_allow_origin: tuple[str, ...] = row(("*",), origin_list, HTTP,
        "origin that browsers may call from, such as https://app.example.org; may be repeated",
        metavar="ORIGIN")
    graceful_termination_timeout: int = row(90, integer(0, DAY), HTTP,
        "time that running requests have to end in after SIGTERM", short="-g", unit="seconds")
    api_workers: int = row(1, integer(1, 256), HTTP,
        "processes that read, tokenise and answer requests; the engine is one beside them", unit="processes",
        env=("PARLEY_API_WORKERS", "API_WORKERS"), tgi=False)
    replicas: int = row(1, integer(1, 1024), HTTP,
        "servers with an engine each that Ray Serve places on the machines of its cluster, behind this one; "
        "needs the extra `ray`", unit="servers", tgi=False)
    prefix_affinity: bool = row(True, boolean, HTTP,
        "have the replica answer that has computed how a prompt begins, unless it has much more to do",
        tgi=False, effect=effects.SEVERAL_REPLICAS)
    worker_timeout: float = row(60.0, decimal(1.5, DAY, zero=True), HTTP,
        "longest that one of several API workers may stand still, after which it is killed and replaced; 0: "
        "any time", unit="seconds", tgi=False, effect=effects.SEVERAL_WORKERS)
    keep_alive_seconds: int = row(15, integer(1, DAY), HTTP,
        "how often a silent stream sends a comment", unit="seconds", tgi=False)
    compute_type: str = row("cpu+optimized", header_text, HTTP,
        "value of the header x-compute-type; on a GPU `1-` and its name, unless given", metavar="TEXT")
    docker_label: str | None = row(None, text, HTTP,
        "label shown by /info and in `system_fingerprint`", metavar="LABEL")
    validator: str = row("compiled", choice("compiled", "reference"), HTTP,
        "which validator checks requests; both give the same answers", tgi=False)
    validate_responses: bool = row(False, boolean, HTTP,
        "check responses against the OpenAPI document, too; slow", tgi=False)
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
        "tell prompts, answers and exceptions' messages in the log, prompts and answers in traces", tgi=False)
    otlp_endpoint: str | None = row(None, endpoint, LOGS,
        "where traces are sent, by OTLP over gRPC, such as http://collector:4317; needs the extra `traces`",
        metavar="URL")
    otlp_service_name: str = row("text-generation-inference.router", text, LOGS,
        "name of the service in traces", metavar="NAME", effect=effects.TRACED)
    usage_stats: str = row("off", choice("on", "no-stack", "off"), LOGS,
        "TGI: telemetry", support=ACCEPTED, reason="nothing is ever sent")

    num_shard: int = row(1, integer(1, 64), DEVICES,
        "processes that have a share each of a model's layers, and of a machine's cores and memory; on CPUs",
        env=("NUM_SHARD", "SM_NUM_GPUS"), unit="shards")
    sharded: bool | None = row(None, boolean, DEVICES,
        "false: one shard, whatever --num-shard says; true: one is too few")
    cuda_memory_fraction: float = row(1.0, decimal(0, 1, above=True), DEVICES,
        "share of a GPU's memory that weights, steps and KV cache may take together; what steps and graphs "
        "need is measured at the start, and 2 % are kept in reserve", effect=effects.ON_GPU)
    tgi_wiggle_room: float | None = row(None, decimal(0, 1, above=True), DEVICES,
        "TGI: share of the free memory to use", flags=(), support=ACCEPTED,
        reason="--max-batch-total-tokens sets the KV cache's size")
    cuda_graphs: tuple[int, ...] | None = row(None, batch_sizes, DEVICES,
        "batch sizes for which a GPU's steps of decodes are captured, such as 1,2,4,8; 0: none; without it "
        "1, 2, 4, 8, 16, 24 and so on up to --max-batch-size", metavar="SIZES", effect=effects.FASTER_ON_GPU)
    one_step_ahead: bool = row(True, boolean, DEVICES,
        "begin a GPU's next step before the last one is read", tgi=False, effect=effects.FASTER_ON_GPU)
    deterministic: bool = row(False, boolean, DEVICES,
        "compute a token with the same bits in any batch on a GPU, too, where it takes longer", tgi=False)
    tune_linears: bool = row(True, boolean, DEVICES,
        "measure at the start how a GPU multiplies up to 256 rows", tgi=False, effect=effects.FASTER_ON_GPU)
    overlap_kernels: bool = row(True, boolean, DEVICES,
        "let a Hopper's kernels come up while earlier ones compute", tgi=False, effect=effects.FASTER_ON_GPU)
    filter_on_device: bool = row(True, boolean, DEVICES,
        "apply top-k, top-p, min-p and penalties on a GPU", tgi=False, effect=effects.FASTER_ON_GPU)
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
        "where the first shard is, for shards of other machines and `parley shard`", metavar="HOST")
    master_port: int = row(29500, PORT, DEVICES, "its port", metavar="PORT")
    remote_shards: int = row(0, integer(0, 63), DEVICES, "shards that are on other machines, `parley shard`",
        unit="shards", tgi=False, effect=effects.SEVERAL_SHARDS)
    # fmt: on

    def engine_config(self) -> EngineConfig:
        """Return the part that the engine is started with."""
        return engine_config(self)


SETTINGS: tuple[Setting[Any], ...] = rows_of(Settings)
