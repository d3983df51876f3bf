"""The wheel, installed: what is in it, what it needs, and that it runs away from the checkout."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # the extension is compiled, unless it was just now

ROOT = Path(__file__).parents[1]
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
SHIPPED = ("handlers", "inference", "openapi")
# none where there is no compiler
EXTENSIONS = [path.relative_to(ROOT) for path in (ROOT / "inference" / "kernels").glob(f"_cpu{SUFFIX}")]
# declared, and used without an import of ours
INDIRECT = {
    "uvloop": "uvicorn's event loop",
    "httptools": "uvicorn's HTTP parser",
    "safetensors": "read by transformers",
    "opentelemetry-exporter-otlp-proto-grpc": "a part of the namespace opentelemetry",
}
BUILDS = {"setuptools"}  # imported by what an install runs
# imported, and declared under another name
DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "PIL": "pillow",
    "triton": "torch",  # the one for CUDA brings what it was made for
    "opentelemetry": "opentelemetry-sdk",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel; with the checkout's extension if setuptools finds it newer than all of its sources."""
    folder = tmp_path_factory.mktemp("wheel")
    settings = folder / "setup.cfg"
    settings.write_text(f"[build]\nbuild_lib = {folder / 'built'}\n")
    for library in EXTENSIONS:
        (folder / "built" / library).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / library, folder / "built" / library)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    source = copy_of_the_checkout(folder)
    environment = {**os.environ, "DIST_EXTRA_CONFIG": str(settings)}
    done = subprocess.run([*build, str(source)], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install it, without what it needs, into a folder of its own."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(folder), str(wheel)], check=True, capture_output=True, timeout=500)
    return folder


def copy_of_the_checkout(folder: Path) -> Path:
    """Copy what git knows or would add, so that the build leaves nothing in the checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    source = folder / "source"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    return source


def run_installed(installed: Path, *line: str) -> subprocess.CompletedProcess[str]:
    """Run Python away from the checkout, with the installed package first."""
    environment = {"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, *line], cwd=installed, env=environment, capture_output=True, text=True, timeout=500
    )


def names_in(wheel: Path) -> list[str]:
    """Return the files of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_ships_three_packages_and_the_licence(wheel: Path) -> None:
    names = names_in(wheel)
    tops = {name.partition("/")[0] for name in names}
    assert set(SHIPPED) == {top for top in tops if not top.endswith(".dist-info")}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_every_module_and_data_file_is_shipped(wheel: Path) -> None:
    shipped = set(names_in(wheel))
    source = [path for package in SHIPPED for path in (ROOT / package).rglob("*.py")]
    data = [*(ROOT / "openapi").glob("*.yaml"), *(ROOT / "inference" / "embedded").glob("*")]
    files = {path.relative_to(ROOT).as_posix() for path in [*source, *data] if path.is_file()}
    files |= {library.as_posix() for library in EXTENSIONS}
    assert set() == files - shipped


def test_the_installed_package_is_the_one_that_runs(installed: Path) -> None:
    code = "import handlers, inference, openapi\nfor one in handlers, inference, openapi: print(one.__file__)"
    done = run_installed(installed, "-c", code)
    assert 3 == done.stdout.count(str(installed)), done.stderr


def test_the_installed_command_serves_its_help_and_its_document(installed: Path) -> None:
    assert "--max-total-tokens" in run_installed(installed, "-m", "handlers", "serve", "--help").stdout
    assert '"openapi": "3.0' in run_installed(installed, "-m", "handlers", "print-schema").stdout


def test_the_installed_server_answers(installed: Path) -> None:
    code = """
import asyncio, httpx
from handlers.app import create_app
from handlers.metrics.metrics import Metrics
from handlers.service import Service
from handlers.settings.table import Settings
from inference.fakes.core import fake_client
settings = Settings()
app = create_app(Service(settings, fake_client(settings.engine_config()), Metrics()))
async def main():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://parley") as client:
        for path in ("/openapi.json", "/docs/", "/metrics"):
            print((await client.get(path)).status_code)
asyncio.run(main())
"""
    done = run_installed(installed, "-c", code)
    assert "200\n200\n200\n" == done.stdout, done.stderr


def test_the_commands_are_installed(installed: Path) -> None:
    lines = (["parley", "--version"], ["text-generation-launcher", "--version"])
    for name, *rest in (*lines, ["text-generation-server", "download-weights", "--version"]):
        done = run_installed(installed, str(installed / "bin" / name), *rest)
        assert done.stdout.startswith("parley "), done.stderr


def imports(package: str) -> Iterator[tuple[Path, str]]:
    """Yield the packages of others that one of ours imports, and where."""
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            tops = {name.partition(".")[0] for name in names}
            yield from ((path, top) for top in tops - set(SHIPPED) - set(sys.stdlib_module_names))


def declared() -> dict[str, str]:
    """Return the requirements of the base, the engine, the traces and the replicas, by normalised name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["engine"], *extras["traces"], *extras["ray"]]
    return {normal(re.split(r"[<>=!~;\[ ]", line, maxsplit=1)[0]): line for line in lines}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_what_is_imported_is_declared_and_what_is_declared_is_used() -> None:
    imported = {normal(DISTRIBUTIONS.get(name, name)) for package in SHIPPED for _, name in imports(package)}
    assert imported - declared().keys() == BUILDS
    assert set() == declared().keys() - imported - INDIRECT.keys()


def test_what_builds_is_imported_by_what_builds_alone() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {re.split(r"[<>=]", line)[0] for line in settings["build-system"]["requires"]} == BUILDS
    importing = {path for package in SHIPPED for path, name in imports(package) if name in BUILDS}
    assert importing == {ROOT / "inference" / "kernels" / "compiling.py"}


def test_each_dependency_is_bounded_above_and_below() -> None:
    for line in declared().values():
        assert ">=" in line, line
        assert ",<" in line, line


def test_the_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    import openapi

    assert project["version"] == openapi.load()["info"]["version"]
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_no_dependency_has_a_licence_that_spreads() -> None:
    for name in declared():
        try:
            metadata = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # the engine's are optional
        about = f"{metadata.get_all('License-Expression')} {metadata.get_all('Classifier')}"
        assert not re.search(r"\bA?GPL\b|Affero|GNU General Public", about), name
