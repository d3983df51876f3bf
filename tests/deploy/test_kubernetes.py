"""Kubernetes' manifests: they fit the published schemas, each other, and what the server does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import openapi
from handlers.http.server import FAREWELL_SECONDS
from handlers.metrics.table import table
from handlers.serving.workers import LATE_SECONDS
from handlers.settings.table import SETTINGS
from tests.deploy.promql import Sample

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSION = "1.31"
FOLDERS = ("base", "autoscaling", "monitoring")
NOT_APPLIED = {"kustomization.yaml", "prometheus-adapter.yaml"}  # the latter: values of a Helm chart
CUSTOM = {"Kustomization", "Component", "ServiceMonitor", "PrometheusRule"}  # not Kubernetes' own
LABELS = {"app.kubernetes.io/name": "parley"}
VARIABLES = {name: setting for setting in SETTINGS for name in setting.variables}


def manifests() -> Iterator[dict[str, Any]]:
    """Yield each object."""
    for path in sorted(path for folder in FOLDERS for path in (FOLDER / folder).glob("*.yaml")):
        if path.name != "prometheus-adapter.yaml":
            yield from yaml.safe_load_all(path.read_text())


EVERY = list(manifests())
BY_KIND = {each["kind"]: each for each in EVERY}
FOLDED = {folder: yaml.safe_load((FOLDER / folder / "kustomization.yaml").read_text()) for folder in FOLDERS}
POD = BY_KIND["Deployment"]["spec"]["template"]
(SERVER,) = POD["spec"]["containers"]
VALUES = {each["name"]: each["value"] for each in SERVER["env"] if "value" in each}


@pytest.mark.parametrize("manifest", EVERY, ids=lambda each: each["kind"])
def test_a_manifest_fits_its_schema(manifest: dict[str, Any]) -> None:
    if manifest["kind"] not in CUSTOM:
        kubernetes_validate.validate(manifest, VERSION, strict=True)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_manifest_is_applied(folder: str) -> None:
    there = {path.name for path in (FOLDER / folder).iterdir()} - NOT_APPLIED
    assert sorted(FOLDED[folder]["resources"]) == sorted(there)


def test_what_wants_more_than_kubernetes_is_a_component_beside() -> None:
    kinds = {
        each["kind"]
        for path in (FOLDER / "base").glob("*.yaml")
        for each in [yaml.safe_load(path.read_text())]
    }
    assert {"Kustomization", "Deployment", "Service", "PodDisruptionBudget"} == kinds
    assert {"Component"} == {FOLDED[folder]["kind"] for folder in FOLDERS if folder != "base"}


def test_who_scales_says_how_many_replicas_there_are() -> None:
    (patch,) = FOLDED["autoscaling"]["patches"]
    assert patch["target"] == {"kind": "Deployment", "name": BY_KIND["Deployment"]["metadata"]["name"]}
    assert yaml.safe_load(patch["patch"]) == [{"op": "remove", "path": "/spec/replicas"}]
    assert "replicas" in BY_KIND["Deployment"]["spec"]


def test_a_pod_computes_with_as_many_threads_as_it_asked_for_cores() -> None:
    (threads,) = [each for each in SERVER["env"] if each["name"] == "PARLEY_COMPUTE_THREADS"]
    assert threads["valueFrom"] == {"resourceFieldRef": {"resource": "requests.cpu"}}
    assert SERVER["resources"]["requests"]["cpu"].isdecimal()


def test_alerts_are_those_of_prometheus_itself() -> None:
    rules = yaml.safe_load((FOLDER.parent / "prometheus" / "alerts.yaml").read_text())
    assert BY_KIND["PrometheusRule"]["spec"] == rules


def test_selectors_find_the_pods() -> None:
    assert LABELS.items() <= POD["metadata"]["labels"].items()
    selectors = [
        BY_KIND["Deployment"]["spec"]["selector"]["matchLabels"],
        BY_KIND["Service"]["spec"]["selector"],
        BY_KIND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        POD["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ]
    assert [LABELS] * 4 == selectors
    # the operator looks for the service by its labels
    monitored = BY_KIND["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= BY_KIND["Service"]["metadata"]["labels"].items()
    assert BY_KIND["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"] == {
        "apiVersion": BY_KIND["Deployment"]["apiVersion"],
        "kind": "Deployment",
        "name": BY_KIND["Deployment"]["metadata"]["name"],
    }


def test_ports_have_the_names_that_others_ask_for() -> None:
    named = {each["name"]: each["containerPort"] for each in SERVER["ports"]}
    assert {"http": int(VALUES["PORT"]), "metrics": int(VALUES["PROMETHEUS_PORT"])} == named
    service = {each["name"]: each["targetPort"] for each in BY_KIND["Service"]["spec"]["ports"]}
    assert set(service.values()) <= named.keys()
    (scraped,) = BY_KIND["ServiceMonitor"]["spec"]["endpoints"]
    assert scraped["port"] in service
    probes = [SERVER[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")]
    assert {"http"} == {probe["port"] for probe in probes}
    assert {probe["path"] for probe in probes} | {scraped["path"]} <= openapi.load()["paths"].keys()


def test_variables_are_settings_and_can_be_read() -> None:
    for name in (each["name"] for each in SERVER["env"]):
        assert name in VARIABLES
        if name in VALUES:
            VARIABLES[name].parse(VALUES[name])
    secret = {name for name, setting in VARIABLES.items() if setting.secret}
    assert not secret & VALUES.keys()


def test_pods_have_the_time_that_the_server_takes_to_end() -> None:
    waits = int(SERVER["lifecycle"]["preStop"]["exec"]["command"][1])
    ends = int(VALUES["GRACEFUL_TERMINATION_TIMEOUT"]) + FAREWELL_SECONDS + LATE_SECONDS
    assert waits + ends <= POD["spec"]["terminationGracePeriodSeconds"]


def test_pods_may_do_nothing_that_they_need_not() -> None:
    pod, server = POD["spec"]["securityContext"], SERVER["securityContext"]
    assert pod["runAsNonRoot"]
    assert pod["runAsUser"] > 0
    assert server["readOnlyRootFilesystem"]
    assert not server["allowPrivilegeEscalation"]
    assert ["ALL"] == server["capabilities"]["drop"]
    assert POD["spec"]["automountServiceAccountToken"] is False
    assert int(VALUES["PORT"]) > 1023  # needs no capability
    mounted = {each["name"]: each["mountPath"] for each in SERVER["volumeMounts"]}
    assert {each["name"] for each in POD["spec"]["volumes"]} == mounted.keys()
    assert {"/data", "/tmp"} == set(mounted.values())


def test_the_autoscaler_goes_by_gauges_that_the_adapter_gives_it(samples: list[Sample]) -> None:
    asked = {each["pods"]["metric"]["name"] for each in BY_KIND["HorizontalPodAutoscaler"]["spec"]["metrics"]}
    gauges = {row["name"] for row in table()["metrics"] if row["type"] == "gauge"}
    assert {"tgi_queue_size", "tgi_batch_current_size"} == asked <= gauges
    assert asked <= {sample.name for sample in samples}
    values = yaml.safe_load((FOLDER / "autoscaling" / "prometheus-adapter.yaml").read_text())
    (rule,) = values["rules"]["custom"]
    assert all(name in rule["seriesQuery"] for name in asked)


def test_the_variant_for_gpus_changes_what_is_there() -> None:
    variant = yaml.safe_load((FOLDER / "gpu" / "kustomization.yaml").read_text())
    (resources,) = variant["resources"]
    assert (FOLDER / "gpu" / resources / "kustomization.yaml").is_file()
    (patch,) = variant["patches"]
    change, more = yaml.safe_load(patch["patch"])
    found: Any = BY_KIND["Deployment"]
    for step in change["path"].strip("/").split("/"):
        found = found[int(step) if step.isdecimal() else step]
    assert found == SERVER["resources"]
    assert "1" == change["value"]["limits"]["nvidia.com/gpu"]
    assert more["path"] == "/spec/template/spec/containers/0/env/-"
    assert int(more["value"]["value"]) == VARIABLES[more["value"]["name"]].parse(more["value"]["value"])
    images = [each["name"] for each in (*variant["images"], *BY_KIND["Kustomization"]["images"])]
    assert {SERVER["image"].partition(":")[0]} == set(images)
