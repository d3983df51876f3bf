"""Settings: one table, read from flags and environment, nothing ignored."""

import argparse
import ast
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import openapi
from handlers.settings.reading import Reading, add_arguments, read
from handlers.settings.row import SettingsError, Support
from handlers.settings.table import SETTINGS, Settings
from inference.config import EngineConfig

ROOT = Path(__file__).parents[4]

# flag or variable, a text, the attribute, its value: TGI 3.3's launcher's own names
TGI = [
    ("--model-id", "MODEL_ID", "org/name", "model_id", "org/name"),
    ("--revision", "REVISION", "main", "revision", "main"),
    ("--validation-workers", "VALIDATION_WORKERS", "3", "validation_workers", 3),
    ("--dtype", "DTYPE", "bfloat16", "dtype", "bfloat16"),
    ("--trust-remote-code", "TRUST_REMOTE_CODE", "true", "trust_remote_code", True),
    ("--max-concurrent-requests", "MAX_CONCURRENT_REQUESTS", "7", "max_concurrent_requests", 7),
    ("--max-best-of", "MAX_BEST_OF", "5", "max_best_of", 5),
    ("--max-stop-sequences", "MAX_STOP_SEQUENCES", "6", "max_stop_sequences", 6),
    ("--max-top-n-tokens", "MAX_TOP_N_TOKENS", "9", "max_top_n_tokens", 9),
    ("--max-input-tokens", "MAX_INPUT_TOKENS", "10", "max_input_tokens", 10),
    ("--max-input-length", "MAX_INPUT_LENGTH", "10", "max_input_tokens", 10),
    ("--max-total-tokens", "MAX_TOTAL_TOKENS", "20", "max_total_tokens", 20),
    ("--waiting-served-ratio", "WAITING_SERVED_RATIO", "1.2", "waiting_served_ratio", 1.2),
    ("--max-batch-prefill-tokens", "MAX_BATCH_PREFILL_TOKENS", "64", "max_batch_prefill_tokens", 64),
    ("--max-batch-total-tokens", "MAX_BATCH_TOTAL_TOKENS", "640", "max_batch_total_tokens", 640),
    ("--max-waiting-tokens", "MAX_WAITING_TOKENS", "1", "max_waiting_tokens", 1),
    ("--max-batch-size", "MAX_BATCH_SIZE", "4", "max_batch_size", 4),
    ("--cuda-graphs", "CUDA_GRAPHS", "1,2,4", "cuda_graphs", (1, 2, 4)),
    ("--cuda-memory-fraction", "CUDA_MEMORY_FRACTION", "0.5", "cuda_memory_fraction", 0.5),
    ("--hostname", "HOSTNAME", "127.0.0.1", "hostname", "127.0.0.1"),
    ("--port", "PORT", "8080", "port", 8080),
    ("--prometheus-port", "PROMETHEUS_PORT", "9000", "prometheus_port", 9000),
    ("--shard-uds-path", "SHARD_UDS_PATH", "/run/tgi", "shard_uds_path", "/run/tgi"),
    ("--num-shard", "NUM_SHARD", "2", "num_shard", 2),
    ("--sharded", "SHARDED", "false", "sharded", False),
    ("--master-addr", "MASTER_ADDR", "10.0.0.1", "master_addr", "10.0.0.1"),
    ("--master-port", "MASTER_PORT", "29501", "master_port", 29501),
    ("--remote-shards", "PARLEY_REMOTE_SHARDS", "0", "remote_shards", 0),
    ("--huggingface-hub-cache", "HUGGINGFACE_HUB_CACHE", "/data", "huggingface_hub_cache", "/data"),
    ("--weights-cache-override", "WEIGHTS_CACHE_OVERRIDE", "/w", "weights_cache_override", "/w"),
    ("--disable-custom-kernels", "DISABLE_CUSTOM_KERNELS", "1", "disable_custom_kernels", True),
    ("--json-output", "JSON_OUTPUT", "true", "json_output", True),
    ("--cors-allow-origin", "CORS_ALLOW_ORIGIN", "http://a", "cors_allow_origin", ("http://a",)),
    ("--api-key", "API_KEY", "s3cret", "api_key", "s3cret"),
    ("--otlp-endpoint", "OTLP_ENDPOINT", "http://c:4317", "otlp_endpoint", "http://c:4317"),
    ("--otlp-service-name", "OTLP_SERVICE_NAME", "mine", "otlp_service_name", "mine"),
    ("--tokenizer-config-path", "TOKENIZER_CONFIG_PATH", "/t.json", "tokenizer_config_path", "/t.json"),
    ("--max-client-batch-size", "MAX_CLIENT_BATCH_SIZE", "8", "max_client_batch_size", 8),
    ("--usage-stats", "USAGE_STATS", "no-stack", "usage_stats", "no-stack"),
    ("--payload-limit", "PAYLOAD_LIMIT", "1000", "payload_limit", 1000),
    ("--enable-prefill-logprobs", "ENABLE_PREFILL_LOGPROBS", "true", "enable_prefill_logprobs", True),
    ("--disable-grammar-support", "DISABLE_GRAMMAR_SUPPORT", "true", "disable_grammar_support", True),
    ("--watermark-gamma", "WATERMARK_GAMMA", "0.25", "watermark_gamma", 0.25),
    ("--watermark-delta", "WATERMARK_DELTA", "1.0", "watermark_delta", 1.0),
    ("-g", "GRACEFUL_TERMINATION_TIMEOUT", "5", "graceful_termination_timeout", 5),
    ("--quantize", "QUANTIZE", "int8", "quantize", "int8"),
    ("--kv-cache-dtype", "KV_CACHE_DTYPE", "bfloat16", "kv_cache_dtype", "bfloat16"),
    ("--prefix-caching", "PREFIX_CACHING", "0", "prefix_caching", False),
    ("--speculate", "SPECULATE", "2", "speculate", 2),
    ("--max-image-fetch-size", "MAX_IMAGE_FETCH_SIZE", "1000", "max_image_fetch_size", 1000),
    ("--lora-adapters", "LORA_ADAPTERS", "a=x, org/b@v1", "lora_adapters", ("a=x", "org/b@v1")),
]
ENVIRONMENT_ONLY = [
    ("SM_NUM_GPUS", "4", "num_shard", 4),
    ("COMPUTE_TYPE", "1-nvidia-l4", "compute_type", "1-nvidia-l4"),
    ("DOCKER_LABEL", "v1", "docker_label", "v1"),
    ("LOG_LEVEL", "info,text_generation_router=debug", "log_level", "info,text_generation_router=debug"),
    ("LOG_COLORIZE", "1", "log_colorize", True),
    ("HF_TOKEN", "hf_x", "hf_token", "hf_x"),
    ("HUGGING_FACE_HUB_TOKEN", "hf_x", "hf_token", "hf_x"),
    ("HF_API_TOKEN", "hf_x", "hf_token", "hf_x"),
    ("HF_MODEL_ID", "org/name", "model_id", "org/name"),
    ("HF_MODEL_REVISION", "main", "revision", "main"),
    ("HF_MODEL_TRUST_REMOTE_CODE", "1", "trust_remote_code", True),
    ("AIP_HTTP_PORT", "8080", "port", 8080),
    ("AIP_PREDICT_ROUTE", "/v1/models/x:predict", "aip_predict_route", "/v1/models/x:predict"),
    ("AIP_HEALTH_ROUTE", "/alive", "aip_health_route", "/alive"),
    ("HF_MODEL_QUANTIZE", "int8", "quantize", "int8"),
    ("USE_PREFIX_CACHING", "0", "prefix_caching", False),
    ("MAX_N", "3", "max_n", 3),
    ("PARLEY_MAX_N", "3", "max_n", 3),
    ("API_WORKERS", "3", "api_workers", 3),
    ("PARLEY_API_WORKERS", "3", "api_workers", 3),
    ("PARLEY_ENGINE_PROCESS", "0", "engine_process", False),
    ("PARLEY_CPU_ISA", "avx2", "cpu_isa", "avx2"),
    ("PARLEY_NATIVE_KERNELS", "0", "native_kernels", False),
    ("PARLEY_FUSE_LAYERS", "0", "fuse_layers", False),
    ("PARLEY_LATENT_CACHE", "0", "latent_cache", False),
    ("PARLEY_NARROW_WEIGHTS", "0", "narrow_weights", False),
    ("PARLEY_COMPRESS_WEIGHTS", "0", "compress_weights", False),
    ("PARLEY_SCREEN_HEAD", "0", "screen_head", False),
    ("PARLEY_TRIM_LAST_LAYER", "0", "trim_last_layer", False),
    ("PARLEY_PREFAULT_CACHE", "0", "prefault_cache", False),
]
# what this version can't do yet: (flag, variable, a text that asks for it, a text that doesn't)
LATER = [
    ("--rope-scaling", "ROPE_SCALING", "linear", None),
    ("--rope-factor", "ROPE_FACTOR", "2.0", "1.0"),
    ("--ngrok", "NGROK", "true", "false"),
]


def read_line(*line: str, **environment: str) -> Reading:
    """Read a command line and variables as `parley serve` does."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_arguments(parser)
    return read(vars(parser.parse_args(line)), environment)


@pytest.mark.parametrize(("flag", "variable", "text", "attribute", "value"), TGI, ids=lambda case: str(case))
def test_each_of_tgis_flags_is_read_from_line_and_environment(
    flag: str, variable: str, text: str, attribute: str, value: Any
) -> None:
    expected = replace(Settings(), **{attribute: value})
    assert expected == read_line(flag, text).settings
    assert expected == read_line(**{variable: text}).settings


@pytest.mark.parametrize(("variable", "text", "attribute", "value"), ENVIRONMENT_ONLY)
def test_variables_without_a_flag_of_that_name_are_read(
    variable: str, text: str, attribute: str, value: Any
) -> None:
    assert replace(Settings(), **{attribute: value}) == read_line(**{variable: text}).settings


@pytest.mark.parametrize(("flag", "variable", "asking", "neutral"), LATER)
def test_what_is_not_supported_yet_is_refused_unless_neutral(
    flag: str | None, variable: str, asking: str, neutral: str | None
) -> None:
    with pytest.raises(SettingsError, match=f"{variable}={asking} is not supported yet .*: unset it"):
        read_line(**{variable: asking})
    if flag is not None:
        with pytest.raises(SettingsError, match=f"{flag} {asking} is not supported yet .*: leave it out"):
            read_line(flag, asking)
    if neutral is not None:
        assert Settings() == read_line(**{variable: neutral}).settings


@pytest.mark.parametrize(
    "method",
    "awq gptq marlin compressed-tensors eetq fp8 bitsandbytes bitsandbytes-nf4 bitsandbytes-fp4".split(),
)
def test_methods_of_tgi_are_taken_and_held_against_the_files_later(method: str) -> None:
    settings = read_line("--quantize", method.upper()).settings
    assert settings.quantize == settings.engine_config().model.quantize == method


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        ("exl2", "must be another: weights of exl2 can't be read; serve the original model, with int8"),
        ("int4", "must be int8 or none, or what the model's files were quantised by: awq, gptq, marlin"),
    ],
)
def test_other_ways_to_quantise_are_refused_with_what_to_do_instead(method: str, advice: str) -> None:
    with pytest.raises(SettingsError, match=f"--quantize {advice}"):
        read_line("--quantize", method)


@pytest.mark.parametrize("name", ["fp8_e4m3fn", "fp8_e5m2"])
def test_caches_of_8_bits_are_refused_with_what_to_do_instead(name: str) -> None:
    with pytest.raises(SettingsError, match=r"-kv-cache-dtype must be .*; bfloat16 is the smallest; it is"):
        read_line("--kv-cache-dtype", name)


def test_no_quantisation_can_be_said() -> None:
    assert Settings() == read_line("--quantize", "none").settings == read_line(QUANTIZE="none").settings


def test_every_row_is_tested_above_or_is_parleys_own() -> None:
    tested = {attribute for *_, attribute, _ in TGI} | {attribute for _, _, attribute, _ in ENVIRONMENT_ONLY}
    later = {variable for _, variable, _, _ in LATER}
    for setting in SETTINGS:
        covered = setting.attribute in tested or later & set(setting.variables)
        assert covered or not setting.tgi or (setting.support is Support.ACCEPTED and setting.reason)


def test_a_setting_without_effect_is_warned_of_once_with_the_reason() -> None:
    variables = {"DISABLE_CUSTOM_KERNELS": "true", "USAGE_STATS": "off", "MAX_WAITING_TOKENS": "4"}
    reading = read_line("--max-waiting-tokens", "12", **variables)
    assert (
        "--max-waiting-tokens 12 has no effect here: every step has room for both, within its token budget",
        "DISABLE_CUSTOM_KERNELS=true has no effect here: none of them is used; --native-kernels false goes "
        "without Parley's own",
    ) == reading.warnings


def test_a_flag_beats_a_variable_and_a_variable_the_default() -> None:
    assert 3 == read_line("--max-best-of", "3", MAX_BEST_OF="4").settings.max_best_of
    assert 4 == read_line(MAX_BEST_OF="4").settings.max_best_of
    assert 2 == read_line().settings.max_best_of


def test_an_empty_variable_counts_as_unset() -> None:
    assert Settings() == read_line(MODEL_ID="", PORT="", QUANTIZE="").settings


def test_an_empty_api_key_is_refused_as_it_would_leave_the_server_open() -> None:
    with pytest.raises(SettingsError, match="API_KEY is empty"):
        read_line(API_KEY="")
    with pytest.raises(SettingsError, match="--api-key must not be empty"):
        read_line("--api-key", "")


def test_vertex_port_beats_the_flag_and_says_so() -> None:
    reading = read_line("--port", "80", AIP_HTTP_PORT="8080", PORT="90")
    assert 8080 == reading.settings.port
    assert ("--port 80 gives way to AIP_HTTP_PORT=8080",) == reading.warnings


def test_short_flags() -> None:
    settings = read_line("-p", "8081", "-g", "7").settings
    assert (8081, 7) == (settings.port, settings.graceful_termination_timeout)


@pytest.mark.parametrize(
    ("line", "expected"),
    [((), 1), (("--merge-linears",), 1), (("--merge-linears", "0"), 0), (("--no-merge-linears",), 0)],
)
def test_a_switch_that_is_on_can_be_turned_off(line: tuple[str, ...], expected: bool) -> None:
    assert expected == read_line(*line).settings.merge_linears


def test_a_switch_stands_alone_before_another_flag() -> None:
    settings = read_line("--json-output", "--port", "1").settings
    assert (True, 1) == (settings.json_output, settings.port)


def test_a_container_name_in_hostname_gives_way_to_all_addresses_with_a_warning() -> None:
    reading = read_line(HOSTNAME="3f2a1b9c")
    assert "0.0.0.0" == reading.settings.hostname
    assert 1 == len(reading.warnings)
    assert "HOSTNAME=3f2a1b9c is not an IP address" in reading.warnings[0]


def test_the_flag_takes_any_host_name() -> None:
    reading = read_line("--hostname", "localhost", HOSTNAME="3f2a1b9c")
    assert ("localhost", ()) == (reading.settings.hostname, reading.warnings)


def test_repeated_origins_add_up() -> None:
    settings = read_line("--cors-allow-origin", "a", "--cors-allow-origin", "b,c").settings
    assert ("a", "b", "c") == settings.cors_allow_origin


def test_engine_config_carries_every_value_under_the_engines_names() -> None:
    settings = Settings(
        model_id="m",
        revision="r",
        dtype="float32",
        device="cpu",
        trust_remote_code=True,
        tokenizer_config_path="t",
        huggingface_hub_cache="c",
        max_concurrent_requests=1,
        max_concurrent_requests_per_key=1,
        max_sequence_logprobs=9,
        template_timeout=1.5,
        max_template_output=10,
        prefix_cache_scope="key",
        max_input_tokens=2,
        max_total_tokens=3,
        max_batch_prefill_tokens=4,
        prefill_chunk_tokens=9,
        max_batch_total_tokens=5,
        max_batch_size=6,
        speculate=3,
        kv_cache_dtype="float32",
        validation_workers=7,
        merge_linears=False,
        compute_threads=8,
        num_shard=3,
        remote_shards=1,
        master_addr="10.0.0.1",
        master_port=29501,
        quantize="int8",
        lora_adapters=("org/adapter",),
        engine_process=False,
        step_timeout=7.5,
        max_engine_restarts=9,
        prefix_caching=False,
        cpu_isa="avx2",
        native_kernels=False,
        fuse_layers=False,
        latent_cache=False,
        narrow_weights=False,
        compress_weights=False,
        screen_head=False,
        trim_last_layer=False,
        prefault_cache=False,
        cuda_memory_fraction=0.5,
        cuda_graphs=(1, 2),
        lora_directory="l",
        lora_memory=11,
        deterministic=True,
        one_step_ahead=False,
        tune_linears=False,
        overlap_kernels=False,
        filter_on_device=False,
        group_experts=False,
    )
    config = settings.engine_config()
    default = EngineConfig()
    for part, plain in ((config, default), (config.model, default.model)):
        for field in fields(part):
            if field.name in (
                "found",
                "engines",
                "kept_adapters",
            ):  # told to those that are started again, or to replicas
                continue
            assert getattr(part, field.name) != getattr(plain, field.name), field.name


def test_the_engines_own_defaults_are_the_tables() -> None:
    assert EngineConfig() == Settings().engine_config()


def test_each_honoured_setting_is_used_somewhere() -> None:
    used = {
        node.attr
        for path in (ROOT / "handlers").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    used |= set(re.findall(r"^ +x-excludes-unless: (\w+)$", openapi.text(), re.MULTILINE))
    honoured = [row.attribute for row in SETTINGS if row.support is Support.HONOURED]
    assert [] == [attribute for attribute in honoured if attribute not in used]


def test_names_are_unique_and_each_row_explains_itself() -> None:
    flags = [name for row in SETTINGS for name in (*row.names, row.short) if name]
    variables = [name for row in SETTINGS for name in row.variables]
    assert len(flags) == len(set(flags))
    assert len(variables) == len(set(variables))
    for row in SETTINGS:
        assert row.help
        assert bool(row.reason) or row.support is not Support.ACCEPTED
