"""The image: what it is built of exists, it takes TGI's place, it asks for no rights that it doesn't need."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from handlers.settings.reading import flag_names
from handlers.settings.table import SETTINGS
from tests.deploy.dockerfile import Stage, read

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
STAGES = read(DOCKERFILE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VARIABLES = {name: setting for setting in SETTINGS for name in setting.variables}
# what isn't ours: the shell's, Python's, pip's, huggingface_hub's, NVIDIA's container runtime's, Triton's
OTHERS = re.compile(r"PATH|PYTHON[A-Z]+|PIP_[A-Z_]+|HF_HOME|NVIDIA_[A-Z_]+|TRITON_CACHE_DIR")
VARIANTS = ("cpu", "gpu")
IGNORED = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()


@pytest.fixture(params=VARIANTS)
def image(request: pytest.FixtureRequest) -> Stage:
    """Return the last stage of each variant."""
    return STAGES[request.param]


def copies(stage: Stage) -> list[tuple[str | None, list[str]]]:
    """Return where each COPY copies from, None for the build's context, and what."""
    found = []
    for arguments in stage.every("COPY"):
        words = arguments.split()
        source = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
        found.append((source, words[:-1]))
    return found


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_what_is_copied_exists_and_is_in_the_context(stage: Stage) -> None:
    for source, paths in copies(stage):
        for path in paths:
            if source is None:
                assert (ROOT / path).exists()
                assert f"!{path}" in IGNORED
            else:
                assert source in STAGES


def test_the_context_is_what_the_package_is_made_of_and_no_more() -> None:
    allowed = {line[1:] for line in IGNORED if line.startswith("!")}
    used = {
        path
        for stage in STAGES.values()
        for source, paths in copies(stage)
        if source is None
        for path in paths
    }
    assert used == allowed
    assert "*" in IGNORED
    packages = {"handlers", "inference", "openapi"}
    assert packages | {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]} <= allowed


@pytest.mark.parametrize("variant", VARIANTS)
def test_torch_is_the_one_that_the_package_asks_for(variant: str) -> None:
    (wanted,) = [each for each in PROJECT["optional-dependencies"]["engine"] if each.startswith("torch")]
    installs = " ".join(STAGES[f"build-{variant}"].every("RUN"))
    assert f'"{wanted}"' in installs
    assert 'pip install ".[${EXTRAS}]"' in installs
    assert STAGES[f"build-{variant}"].every("ARG").count("EXTRAS") == 1  # or the default isn't known there


def test_what_is_installed_is_what_the_package_has() -> None:
    (extras,) = re.findall(r"^ARG EXTRAS=(.+)$", DOCKERFILE.read_text(), re.MULTILINE)
    (told,) = re.findall(r"--build-arg EXTRAS=([a-z,]+)", DOCKERFILE.read_text())
    assert extras == "engine,traces"
    assert {*extras.split(","), "ray"} == set(told.split(",")) <= PROJECT["optional-dependencies"].keys()


def test_its_first_process_is_tgis_command_and_gets_its_arguments(image: Stage) -> None:
    *init, program = image.listed("ENTRYPOINT")
    assert init == ["tini", "--"]  # which takes what processes leave behind that were killed
    assert any("tini" in line for line in image.every("RUN"))
    assert program == "text-generation-launcher"
    assert program in PROJECT["scripts"]
    assert set(image.listed("CMD")) <= set(flag_names())


def test_variables_are_settings_or_somebody_elses(image: Stage) -> None:
    environment = image.environment()
    for name, value in environment.items():
        if name in VARIABLES:
            VARIABLES[name].parse(value)
        else:
            assert OTHERS.fullmatch(name), name
    assert ("80", "/data") == (environment["PORT"], environment["HF_HOME"])  # as TGI's image has them
    assert [environment["PORT"]] == image.every("EXPOSE")


def test_it_runs_as_a_user_without_rights_who_may_write_the_models_folder(image: Stage) -> None:
    assert image.every("USER")[-1] == "1000:1000"
    assert image.instructions[-1][0] == "USER"
    assert any(
        "--uid 1000" in run and "--owner parley" in run and "/data" in run for run in image.every("RUN")
    )


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_layers_leave_nothing_behind_and_versions_are_named(stage: Stage) -> None:
    assert not stage.every("ADD")
    for run in stage.every("RUN"):
        if "apt-get install" in run:
            assert "--no-install-recommends" in run
            assert "rm -rf /var/lib/apt/lists/*" in run
    if stage.base not in STAGES:
        assert re.fullmatch(r"python:\$\{PYTHON\}-slim", stage.base)


def test_the_final_images_have_nothing_of_the_build_but_what_it_made(image: Stage) -> None:
    assert not any("pip install" in run for run in image.every("RUN"))
    assert [(f"build-{image.name}", ["/opt/parley"])] == [
        each for each in copies(image) if each[0] is not None
    ]


def test_the_healthcheck_is_copied_and_run(image: Stage) -> None:
    ((options, words),) = [re.split(r" CMD ", each) for each in image.every("HEALTHCHECK")]
    assert words == '["python", "/opt/healthcheck.py"]'
    assert "--start-period" in options
    assert "deploy/healthcheck.py /opt/healthcheck.py" in image.every("COPY")


def test_compose_builds_this_image_and_mounts_what_is_there() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    server = compose["services"]["parley"]
    build = server["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    assert build["target"] == "${PARLEY_TARGET:-cpu}"
    assert server["environment"].keys() <= VARIABLES.keys()
    assert server["ports"] == [f"8080:{STAGES['cpu'].environment()['PORT']}"]
    assert int(server["stop_grace_period"][:-1]) > int(server["environment"]["GRACEFUL_TERMINATION_TIMEOUT"])
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"]
        assert "latest" not in service["image"]


def test_compose_scrapes_the_port_that_the_server_has_for_it() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    scraping = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    ((target,),) = [each["targets"] for each in scraping["scrape_configs"][0]["static_configs"]]
    assert target == f"parley:{compose['services']['parley']['environment']['PROMETHEUS_PORT']}"
    mounted = [volume.split(":")[1] for volume in compose["services"]["prometheus"]["volumes"]]
    assert set(scraping["rule_files"]) <= set(mounted)
    source = DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yaml"
    (prometheus,) = yaml.safe_load(source.read_text())["datasources"]
    assert prometheus["url"].removeprefix("http://").partition(":")[0] in compose["services"]


def run_as_sagemaker(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the image's first process as SageMaker does, beside a launcher that tells what it was given."""
    launcher = folder / "text-generation-launcher"
    launcher.write_text('#!/bin/sh\necho "$HF_MODEL_ID: $@"\n')
    launcher.chmod(0o755)
    *init, first, script = STAGES["sagemaker"].listed("ENTRYPOINT")
    assert init == ["tini", "--"]
    (source,) = [
        paths[0] for _, paths in copies(STAGES["sagemaker"]) if Path(paths[0]).name == Path(script).name
    ]
    environment = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", **environment}
    line = [first, str(ROOT / source), *STAGES["sagemaker"].listed("CMD")]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)


def test_sagemakers_image_serves_its_model_at_its_port(tmp_path: Path) -> None:
    image = STAGES["sagemaker"]
    assert image.base == "gpu"
    assert ["serve"] == image.listed("CMD")
    done = run_as_sagemaker(tmp_path, HF_MODEL_ID="/opt/ml/model")
    assert done.stdout == "/opt/ml/model: --port 8080 --json-output\n"
    assert set(re.findall("--[a-z-]+", done.stdout)) <= set(flag_names())
    environment = image.environment()
    assert environment["PORT"] == image.every("EXPOSE")[-1] == "8080"
    assert environment["HF_HOME"].startswith("/tmp/")


def test_sagemakers_image_without_a_model_says_what_is_missing(tmp_path: Path) -> None:
    done = run_as_sagemaker(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "HF_MODEL_ID must be set" in done.stderr
