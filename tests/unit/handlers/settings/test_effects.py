"""Settings that have no effect beside the others are told, once and with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from handlers.settings import effects as settings_effects
from handlers.settings.reading import read
from handlers.settings.table import SETTINGS
from tests.unit.handlers.settings.test_table import read_line

OF_A_GPU = (
    ("--cuda-memory-fraction", "0.5"),
    ("--cuda-graphs", "1,2"),
)
NEUTRAL = (  # what asks for nothing where there is nothing of the kind
    ("--cuda-graphs", "0"),
    ("--no-one-step-ahead",),
    ("--no-tune-linears",),
    ("--no-overlap-kernels",),
    ("--no-filter-on-device",),
    ("--no-group-experts",),
    ("--worker-timeout", "0"),
    ("--step-timeout", "0", "--no-engine-process"),
    ("--max-engine-restarts", "0", "--no-engine-process"),
)
OF_A_CPU = (
    ("--cpu-isa", "avx2"),
    ("--no-narrow-weights",),
    ("--no-screen-head",),
    ("--no-prefault-cache",),
)
OTHERS = (  # what has no effect, the reason, and what gives it one
    (("--revision", "main"), "the model isn't fetched from the hub", ("--model-id", "org/model")),
    (("--trust-remote-code",), "the model that ships with Parley has no code", ("--model-id", "org/model")),
    (("--otlp-service-name", "x"), "without --otlp-endpoint nothing", ("--otlp-endpoint", "http://c:1")),
    (("--worker-timeout", "5"), "it is for several --api-workers", ("--api-workers", "2")),
    (("--lora-memory", "5"), "without --lora-directory no adapter", ("--lora-directory", "/tmp")),
    (("--prefix-affinity", "false"), "it is for several --replicas", ("--replicas", "2")),
    (("--remote-shards", "1"), "it is for several --num-shard", ("--num-shard=2", "--master-addr=10.0.0.1")),
    (
        ("--master-addr", "10.0.0.1"),
        "no shard is on another machine, by --remote-shards",
        ("--num-shard=2", "--remote-shards=1"),
    ),
    (
        ("--master-port", "29501"),
        "no shard is on another machine, by --remote-shards",
        ("--num-shard=2", "--remote-shards=1", "--master-addr=10.0.0.1"),
    ),
    (
        ("--max-concurrent-requests-per-key", "128"),
        "--max-concurrent-requests allows all keys together no more",
        ("--max-concurrent-requests", "129"),
    ),
    (
        ("--image-payload-limit", "2000000"),
        "--payload-limit lets bodies of that size in already",
        ("--payload-limit", "1999999"),
    ),
    (("--prefix-cache-scope", "all", "--no-prefix-caching"), "there is no prefix cache", None),
    (("--step-timeout", "5", "--no-engine-process"), "without --engine-process nobody", None),
    (("--max-engine-restarts", "9", "--no-engine-process"), "without --engine-process nobody starts", None),
    (("--speculate", "2", "--device=cuda"), "on a GPU the next step begins before", None),
    (("--max-grammar-size", "5", "--disable-grammar-support"), "--disable-grammar-support refuses", None),
    (
        ("--response-format-with-tools", "all", "--disable-grammar-support"),
        "--disable-grammar-support refuses",
        None,
    ),
    (("--image-hosts", "a", "--image-fetching=off"), "--image-fetching off fetches none", None),
    (("--max-image-fetch-size", "5", "--image-fetching=off"), "--image-fetching off fetches none", None),
    (("--image-fetch-timeout", "5", "--image-fetching=off"), "--image-fetching off fetches none", None),
)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a machine without a GPU."""
    monkeypatch.setattr(settings_effects, "GPU_FILES", ())


@pytest.mark.parametrize("line", OF_A_GPU, ids=lambda line: line[0])
def test_what_is_for_a_gpu_has_no_effect_without_one(
    line: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for more in ((), ("--device", "cpu")):
        (warning,) = read_line(*line, *more).warnings
        assert line[0] in warning
        assert warning.endswith("has no effect here: it is for a GPU, and the model runs on the CPU")
    assert () == read_line(*line, "--device", "cuda").warnings
    monkeypatch.setattr(settings_effects, "GPU_FILES", (str(tmp_path),))  # there may be one
    assert () == read_line(*line).warnings
    assert 1 == len(read_line(*line, "--device", "cpu").warnings)


@pytest.mark.parametrize("line", OF_A_CPU, ids=lambda line: line[0])
def test_what_is_for_the_cpu_has_no_effect_on_a_gpu(line: tuple[str, ...]) -> None:
    (warning,) = read_line(*line, "--device", "cuda").warnings
    assert warning.endswith("has no effect here: it is for the CPU, and the model runs on a GPU")
    assert () == read_line(*line).warnings


@pytest.mark.parametrize(("line", "reason", "cure"), OTHERS, ids=lambda case: str(case))
def test_what_has_no_effect_beside_the_others_is_told(
    line: tuple[str, ...], reason: str, cure: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_traces_available", "_ray_available"):
        monkeypatch.setattr(f"handlers.settings.contradictions.{name}", lambda: True)
    (warning,) = read_line(*line).warnings
    assert warning.startswith(line[0])
    assert f" has no effect here: {reason}" in warning
    assert () == read_line(*(line[:-1] if cure is None else (*line, *cure))).warnings


@pytest.mark.parametrize("line", NEUTRAL, ids=lambda line: line[0])
def test_what_is_switched_off_where_there_is_none_is_no_mistake(line: tuple[str, ...]) -> None:
    assert () == read_line(*line).warnings
    assert () == read_line(*line, "--device", "cpu").warnings


def test_shards_elsewhere_of_a_model_that_is_not_divided_give_their_address_no_effect() -> None:
    warned = read_line("--sharded=false", "--remote-shards=1", "--num-shard=2", "--master-addr=h").warnings
    assert [warning.split(" ")[0] for warning in warned] == ["--master-addr", "--remote-shards"]


@pytest.mark.parametrize("model", ["~nosuchuser/x", "x" * 5000])
def test_a_name_that_cannot_be_looked_for_is_left_to_the_loading(model: str) -> None:
    assert () == read_line("--model-id", model, REVISION="main").warnings


def test_a_directory_without_leave_to_look_is_left_to_the_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refuse)
    assert () == read_line("--model-id", str(tmp_path), REVISION="main").warnings


def test_no_effect_is_expected_where_nothing_is_served() -> None:
    given = {"PARLEY_WORKER_TIMEOUT": "5", "CUDA_GRAPHS": "1,2"}
    assert 2 == len(read({}, given).warnings)
    assert () == read({}, given, serving=False).warnings


def test_a_directory_has_no_revisions(tmp_path: Path) -> None:
    (warning,) = read_line("--model-id", str(tmp_path), REVISION="main").warnings
    assert warning.startswith("REVISION=main has no effect here")


def test_a_default_that_is_given_asks_for_nothing() -> None:
    assert () == read_line("--cuda-memory-fraction", "1.0", "--worker-timeout", "60").warnings


def test_every_condition_is_tested_here() -> None:
    flags = {line[0] for line in (*OF_A_GPU, *OF_A_CPU, *NEUTRAL, *(line for line, _, _ in OTHERS))}
    tested = {flag.replace("--no-", "--") for flag in flags}
    assert tested == {row.names[0] for row in SETTINGS if row.effect is not None}
