"""The pages on deployment and observability: what they name exists, and what they say is so."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from handlers.access_log import generated, texts
from handlers.metrics.table import table
from handlers.settings.reading import flag_names
from handlers.settings.table import SETTINGS
from handlers.tracing import gen_ai_attributes, stages, tgi_attributes
from inference.types import Request
from tests.deploy.dockerfile import read
from tests.unit.handlers.metrics.test_metrics import FINISH

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("deploy", "observability")}
OTHERS = {
    "--build",
    "--build-arg",
    "--rm",
    "--gpus",
    "--target",
    "--shm-size",
    "--tmpfs",
    "--from-file",
    "--head",
    "--address",
}  # Docker's, kubectl's, Ray's
REQUEST = Request(id="r", prompt="p")


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_flags_and_files_exist(page: str) -> None:
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page)) <= {*flag_names(), *OTHERS}
    paths = set(re.findall(r"(?:deploy|codegen)/[\w./-]+\w", page))
    assert paths
    assert [] == [path for path in paths if not (ROOT / path).exists()]
    assert [] == [link for link in re.findall(r"\]\(([^)]+)\)", page) if not (ROOT / "docs" / link).exists()]


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_metrics_exist(page: str) -> None:
    names = {row["name"] for row in table()["metrics"]}
    for name in re.findall(r"`(tgi_[a-z_]+|parley_[a-z_]+)(\*?)`", page):
        assert name[0] in names or (name[1] and any(each.startswith(name[0]) for each in names))


def test_images_are_built_of_stages_that_exist() -> None:
    targets = re.findall(r"--target (\w+)", PAGES["deploy"])
    assert {"cpu", "gpu", "sagemaker"} == set(targets) <= read(ROOT / "deploy" / "Dockerfile").keys()


def test_every_field_of_a_requests_line_is_told() -> None:
    told = set(re.findall(r"`([a-z_]+)`", PAGES["observability"]))
    assert {*generated([replace(FINISH, seed=1)]), *texts([(REQUEST, FINISH)])} <= told
    assert {"status", "seconds", "received_bytes", "sent_bytes", "key", "error_type", "trace_id"} <= told


def test_every_span_and_attribute_is_told() -> None:
    told = set(re.findall(r"`([a-z_]+)`", PAGES["observability"]))
    assert {*tgi_attributes(REQUEST, FINISH), *(name for name, *_ in stages(FINISH.timings))} <= told
    assert all(name.startswith("gen_ai.") for name in gen_ai_attributes("m", "generate", REQUEST, FINISH))


def test_the_times_of_the_manifest_are_the_ones_told() -> None:
    manifest = (ROOT / "deploy" / "kubernetes" / "base" / "deployment.yaml").read_text()
    (grace,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", manifest)
    assert f"`terminationGracePeriodSeconds: {grace}`" in PAGES["deploy"]
    (default,) = [each.default for each in SETTINGS if each.attribute == "graceful_termination_timeout"]
    assert f"`GRACEFUL_TERMINATION_TIMEOUT` ({default})" in PAGES["deploy"]
