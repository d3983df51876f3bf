"""What of settings is refused, kept secret, or taken from the machine."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.settings import reading as settings_reading
from handlers.settings.reading import check
from handlers.settings.row import SettingsError
from handlers.settings.table import Settings
from tests.unit.handlers.settings.test_table import read_line


@pytest.mark.parametrize(
    ("line", "environment", "message"),
    [
        (("--port", "x"), {}, r"--port must be an integer; it is 'x'"),
        ((), {"PORT": "\u0663"}, r"PORT must be an integer; it is '\u0663'"),
        (("--port", "0"), {}, r"--port must be from 1 to 65535; it is '0'"),
        ((), {"PORT": "70000"}, r"PORT must be from 1 to 65535; it is '70000'"),
        ((), {"MAX_BATCH_SIZE": "9" * 19}, r"MAX_BATCH_SIZE must be from 1 to 65536; it is '9+': change it"),
        (("--max-image-fetch-size", "-1"), {}, r"--max-image-fetch-size must be from 0 to 1099511627776"),
        (("--step-timeout", "0.5"), {}, r"--step-timeout must be 0, or at least 1 and at most 86400; it is"),
        (
            ("--tokens-per-minute", "1e9"),
            {},
            r"--tokens-per-minute must be an integer; it is '1e9': change it",
        ),
        ((), {"API_KEY": "a\udcff"}, r"API_KEY must be UTF-8; it is \.\.\."),
        ((), {"MAX_BATCH_SIZE": "0"}, r"MAX_BATCH_SIZE must be from 1 to 65536; it is '0'"),
        (("--validation-workers", "0"), {}, r"--validation-workers must be from 1 to 1024; it is '0'"),
        (("--sharded",), {}, r"`sharded` is true, and `num_shard` is 1: say over how many"),
        (
            ("--num-shard", "2", "--remote-shards", "2"),
            {},
            r"`remote_shards` must be < `num_shard`.*: 2 and 2",
        ),
        (
            ("--num-shard", "2", "--remote-shards", "1"),
            {},
            r"`remote_shards` need `master_addr`",
        ),
        (("--num-shard", "2", "--device", "cuda"), {}, r"`num_shard` 2 is for CPUs, and `device` is cuda"),
        (("--num-shard", "0"), {}, r"--num-shard must be from 1 to 64; it is '0'"),
        ((), {"JSON_OUTPUT": "yes"}, r"JSON_OUTPUT must be true, 1, false or 0; it is 'yes'"),
        (
            ("--watermark-gamma", "1"),
            {},
            r"--watermark-gamma must be greater than 0 and less than 1; it is '1'",
        ),
        (
            (),
            {"AIP_PREDICT_ROUTE": "predict"},
            r"AIP_PREDICT_ROUTE must be a path such as /predict; it is .*",
        ),
        ((), {"AIP_HEALTH_ROUTE": "/{x}"}, r"AIP_HEALTH_ROUTE must be a path such as /predict; it is '/{x}'"),
        (("--dtype", "int4"), {}, r"--dtype must be one of auto, float32, float16, bfloat16; it is 'int4'"),
        ((), {"KV_CACHE_DTYPE": "int8"}, r"KV_CACHE_DTYPE must be auto, float32 or bfloat16; it is 'int8'"),
        ((), {"LOG_LEVEL": "loud"}, r"LOG_LEVEL must be .*; it is 'loud'"),
        (("--port", "1", "--port", "2"), {}, r"--port is given twice: leave one of them out"),
        (
            ("--max-input-tokens", "1"),
            {"MAX_INPUT_LENGTH": "1"},
            r"--max-input-tokens 1 and MAX_INPUT_LENGTH=1 are the same setting: leave one of them out",
        ),
        (
            (),
            {"MAX_INPUT_TOKENS": "5", "MAX_TOTAL_TOKENS": "5"},
            r"`max_input_tokens` must be < `max_total_tokens`. Given: 5 and 5",
        ),
        (
            (),
            {"MAX_BATCH_PREFILL_TOKENS": "9", "MAX_BATCH_TOTAL_TOKENS": "8"},
            r"`max_batch_prefill_tokens` must be <= `max_batch_total_tokens`. Given: 9 and 8",
        ),
        (
            (),
            {"MAX_TOTAL_TOKENS": "9", "MAX_BATCH_TOTAL_TOKENS": "8"},
            r"`max_total_tokens` must be <= `max_batch_total_tokens`. Given: 9 and 8",
        ),
        (("--api-workers", "0"), {}, r"--api-workers must be from 1 to 256; it is '0'"),
        (
            ("--api-workers", "2", "--no-engine-process"),
            {},
            r"`api_workers` 2 need an engine that they share: leave --no-engine-process out",
        ),
        (("--replicas", "1025"), {}, r"--replicas must be from 1 to 1024; it is '1025'"),
        (
            ("--replicas", "2", "--api-workers", "3"),
            {},
            r"`api_workers` 3 and `replicas` 2 are one too many: .* leave --api-workers out",
        ),
        ((), {"PORT": "1", "PROMETHEUS_PORT": "1"}, r"`prometheus_port` must not be `port`. Given: 1"),
        ((), {"PARLEY_VALIDATR": "x"}, r"PARLEY_VALIDATR is no setting; did you mean PARLEY_VALIDATOR\?"),
        ((), {"PARLEY_ZZZ": "x"}, r"PARLEY_ZZZ is no setting$"),
    ],
)
def test_refusals_name_the_setting_the_limit_and_the_value(
    line: tuple[str, ...], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        read_line(*line, **environment)


def test_what_kubernetes_sets_for_a_service_named_parley_is_no_setting() -> None:
    names = ("SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR", "X_PORT_1_UDP")
    assert Settings() == read_line(**{f"PARLEY_{name}": "tcp://10.0.0.1:80" for name in names}).settings


def test_all_that_kubernetes_sets_for_a_service_is_harmless() -> None:
    link = {"PORT": "udp://10.0.0.1:80", "PORT_80_TCP": "tcp://10.0.0.1:80", "PORT_80_TCP_PROTO": "tcp"}
    parts = {"PORT_80_TCP_PORT": "80", "PORT_80_TCP_ADDR": "10.0.0.1", "SERVICE_HOST": "10.0.0.1"}
    variables = link | parts | {"SERVICE_PORT": "80", "SERVICE_PORT_HTTP": "80"}
    for service in ("PARLEY", "PARLEY_PROMETHEUS", "PARLEY_GPU"):
        named = {f"{service}_{name}": value for name, value in variables.items()}
        assert Settings() == read_line(**named).settings


def test_a_services_address_is_no_port_of_ours() -> None:
    reading = read_line(PROMETHEUS_PORT="tcp://10.0.0.1:9090", MASTER_PORT="udp://10.0.0.1:80")
    assert Settings() == reading.settings
    service = "is Kubernetes' address of the service"
    assert (
        f"PROMETHEUS_PORT=tcp://10.0.0.1:9090 {service} 'prometheus', and no setting",
        f"MASTER_PORT=udp://10.0.0.1:80 {service} 'master', and no setting",
    ) == reading.warnings
    assert not reading.given


@pytest.mark.parametrize(
    ("flags", "environment"),
    [
        ((), {"PORT": "tcp://10.0.0.1:80"}),
        ((), {"PROMETHEUS_PORT": "10.0.0.1:80"}),
        (("--prometheus-port", "tcp://10.0.0.1:80"), {}),
    ],
)
def test_an_address_that_no_service_has_set_is_refused(
    flags: tuple[str, ...], environment: dict[str, str]
) -> None:
    with pytest.raises(SettingsError, match=r"must be an integer; it is '.*10\.0\.0\.1:80'"):
        read_line(*flags, **environment)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("PARLEY_PORT", "PORT"),
        ("PARLEY_PROMETHEUS_PORT", "PROMETHEUS_PORT"),
        ("PARLEY_MODEL_ID", "MODEL_ID"),
    ],
)
def test_a_setting_of_tgis_with_our_prefix_is_told(name: str, hint: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is no setting; did you mean {hint}\\?"):
        read_line(**{name: "8080"})


def test_an_empty_port_with_our_prefix_asks_for_nothing() -> None:
    assert Settings() == read_line(PARLEY_PORT="").settings
    with pytest.raises(SettingsError, match="PARLEY_API_KEY is no setting"):  # it would leave the server open
        read_line(PARLEY_API_KEY="")


def test_a_collectors_password_is_refused_and_not_shown() -> None:
    with pytest.raises(SettingsError) as refused:
        read_line(OTLP_ENDPOINT="http://me:s3cret@collector:4317")
    assert (
        "OTLP_ENDPOINT must have no user and no password: what a collector asks for is sent by "
        "OTEL_EXPORTER_OTLP_HEADERS; it is 'http://...@collector:4317': change it, or unset it"
    ) == str(refused.value)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_key_is_read_without_the_end_of_its_line(end: str) -> None:
    assert "s3cret key" == read_line(API_KEY=f"s3cret key{end}").settings.api_key
    assert "s3cret key" == read_line("--api-key", f"s3cret key{end}").settings.api_key


@pytest.mark.parametrize("key", ["s3\tcret", "s3\xa0cret", "s3cret\u2028", "\u200bs3cret", "sécret"])
def test_a_key_may_have_whatever_a_header_can_carry(key: str) -> None:
    assert key == read_line(API_KEY=key).settings.api_key


@pytest.mark.parametrize(
    ("key", "why"),
    [
        *((key, "no space or tab at its ends") for key in (" s3cret", "s3cret ", "\ts3cret", "s3cret\t\n")),
        ("s3cret\n\n", r"no control character, .*: there is U\+000A at character 7"),
        ("s3\ncret", r"no control character, .*: there is U\+000A at character 3"),
        ("s3\x00cret", r"no control character, .*: there is U\+0000 at character 3"),
        ("s3\x7fcret", r"no control character, .*: there is U\+007F at character 3"),
    ],
)
def test_a_key_that_no_header_could_carry_is_refused_and_not_shown(key: str, why: str) -> None:
    with pytest.raises(SettingsError, match=rf"API_KEY must have {why}.*; it is \.\.\.") as told:
        read_line(API_KEY=key)
    assert "s3" not in str(told.value)


@pytest.mark.parametrize("around", ["{}", "{}\n", "{}\r\n", " {}\t\n"])
def test_the_text_of_a_header_is_read_without_what_stands_around_it(around: str) -> None:
    read = read_line(COMPUTE_TYPE=around.format("1-märchen gpu"))
    assert "1-märchen gpu" == read.settings.compute_type


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("a\nb", r"no control character, which a header can't carry: there is U\+000A at character 2"),
        ("a\x7f", r"no control character, which a header can't carry: there is U\+007F at character 2"),
        ("card \u2192", r"be in Latin-1, as headers are: there is U\+2192 at character 6"),
    ],
)
def test_what_no_header_could_say_is_refused_at_the_start(given: str, why: str) -> None:
    with pytest.raises(SettingsError, match=rf"COMPUTE_TYPE must (have )?{why}"):
        read_line(COMPUTE_TYPE=given)


def test_secrets_are_shown_nowhere() -> None:
    reading = read_line("--api-key", "s3cret", HF_TOKEN="hf_s3cret")
    assert "s3cret" not in f"{reading.settings} {[str(given) for given in reading.given]}"


def test_the_token_of_a_tunnel_is_told_to_have_no_effect_and_shown_nowhere() -> None:
    for line, environment in ((("--ngrok-authtoken", "s3cret"), {}), ((), {"NGROK_AUTHTOKEN": "s3cret"})):
        (warning,) = read_line(*line, **environment).warnings
        assert "run ngrok beside it" in warning
        assert "s3cret" not in warning


def test_the_card_names_the_compute_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = tmp_path / "0000:00:01.0" / "information"
    card.parent.mkdir()
    card.write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 1\n")
    monkeypatch.setattr(settings_reading, "GPUS", tmp_path)
    assert "1-nvidia-h100-80gb-hbm3" == read_line().settings.compute_type
    assert "cpu+optimized" == read_line("--device", "cpu").settings.compute_type
    assert "mine" == read_line("--compute-type", "mine").settings.compute_type


@given(st.one_of(st.none(), st.integers(1, 9)), st.one_of(st.none(), st.integers(1, 9)))
def test_check_compares_only_what_is_given(longest_input: int | None, total: int | None) -> None:
    settings = Settings(max_input_tokens=longest_input, max_total_tokens=total)
    if longest_input is not None and total is not None and longest_input >= total:
        with pytest.raises(SettingsError):
            check(settings)
    else:
        check(settings)


@pytest.mark.parametrize("missing", [None, ModuleNotFoundError("No module named 'opentelemetry'")])
def test_traces_without_their_libraries_are_refused_at_the_start(
    missing: ModuleNotFoundError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_spec(name: str) -> None:
        if missing is not None:
            raise missing

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    check(Settings())
    with pytest.raises(SettingsError, match=r"install Parley with its extra `traces`"):
        check(Settings(otlp_endpoint="http://c:4317"))


def test_replicas_without_ray_are_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check(Settings())
    with pytest.raises(SettingsError, match=r"`replicas` 2 need Ray Serve, .* with its extra `ray`"):
        check(Settings(replicas=2))


def test_origins_are_as_browsers_write_them() -> None:
    reading = read_line("--cors-allow-origin", "HTTPS://App.example/,http://[::1]:81,*,null")
    assert ("https://app.example", "http://[::1]:81", "*", "null") == reading.settings.cors_allow_origin
    assert not reading.warnings


@pytest.mark.parametrize(
    "origin",
    [
        "app.example",
        "https://a/path",
        "https://a b",
        "https://u@a",
        "https://*.a",
        "https://a:443",
        "http://ü",
    ],
)
def test_who_gives_what_no_browser_has_for_an_origin_is_told(origin: str) -> None:
    (warning,) = read_line("--cors-allow-origin", f"https://a,{origin}").warnings
    assert f"lets nobody in from {origin!r}, which is no origin: write one as in https://" in warning


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"replicas": 2}, "`replicas` is 2"),
        ({"num_shard": 2}, "`num_shard` is 2"),
        ({"device": "cuda"}, "`device` is cuda"),
        ({"lora_directory": "/nowhere/at/all"}, "must be a directory. Given: /nowhere/at/all"),
    ],
)
def test_adapters_that_come_later_are_for_one_engine_on_a_cpu(
    settings: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handlers.settings.contradictions._ray_available", lambda: True)
    check(Settings(lora_directory=str(tmp_path)))
    check(Settings(lora_directory=str(tmp_path), num_shard=2, sharded=False))
    with pytest.raises(SettingsError, match=re.escape(told)):
        check(Settings(**{"lora_directory": str(tmp_path), **settings}))
