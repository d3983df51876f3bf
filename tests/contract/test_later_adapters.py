"""LoRA adapters that clients load and unload while the server runs, by vLLM's two routes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from codegen.document import Document
from handlers.keys import SCOPES
from inference.fakes.core import FakeCore, FakeModel
from inference.types import AdapterChange
from tests.adapter_files import write_adapter
from tests.contract.likeness import without_id
from tests.contract.serving import Served, events_of, served
from tests.support import error_of

DOCUMENT = Document.load()
pytestmark = pytest.mark.anyio

# Each is brought about below
ADAPTERS_BY_STATE = {
    *(("AdapterRefused", name) for name in ("loaded", "outside")),
    *(("AdapterForbidden", name) for name in ("off", "scope")),
    *(("AdapterNotFound", name) for name in ("adapter", "directory")),
}
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
MESSAGES = [{"role": "user", "content": "Hi"}]
OUTSIDE = (
    "`lora_path` must be a directory below the one that --lora-directory allows, by its path there or the "
    "whole of it, of at most 1024 characters. Given for `sql`: "
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory that is allowed, with two adapters, beside one that isn't."""
    for name in ("one", "deep/two"):
        write_adapter(tmp_path / "allowed" / name)
    write_adapter(tmp_path / "secret")
    return tmp_path / "allowed"


@asynccontextmanager
async def serving(root: Path, **settings: Any) -> AsyncIterator[Served]:
    async with served(model_id="org/m", lora_directory=str(root), **settings) as server:
        yield server


async def load(server: Served, name: str = "sql", path: str = "one", **more: Any) -> httpx.Response:
    return await server.post(LOAD, {"lora_name": name, "lora_path": path, **more})


async def listed(server: Served) -> list[str]:
    return [each["id"] for each in (await server.http.get("/v1/models")).json()["data"]]


async def test_one_is_loaded_named_listed_and_unloaded(root: Path) -> None:
    async with serving(root) as server:
        asked = {"inputs": "Hi", "parameters": {"adapter_id": "sql", "max_new_tokens": 20}}
        assert (await server.post("/generate", asked)).status_code == 422
        added = await load(server)
        assert (added.status_code, added.text) == (200, "Success: LoRA adapter 'sql' added successfully.")
        assert await listed(server) == ["org/m", "sql"]
        by_id = await server.post("/generate", asked)
        assert by_id.status_code == 200
        alone = await server.post("/generate", {"inputs": "Hi", "parameters": {"max_new_tokens": 20}})
        assert by_id.json() != alone.json()
        removed = await server.post(UNLOAD, {"lora_name": "sql"})
        assert (removed.status_code, removed.text) == (
            200,
            "Success: LoRA adapter 'sql' removed successfully.",
        )
        assert await listed(server) == ["org/m"]
        refused = await server.post("/generate", asked)
    assert refused.status_code == 422
    assert "`adapter_id` must name a loaded adapter: none are" in error_of(refused)["error"]


async def test_as_the_model_it_answers_and_is_reported_by_nobody(root: Path) -> None:
    async with serving(root) as server:
        for path, asked in (
            ("/v1/chat/completions", {"messages": MESSAGES}),
            ("/v1/completions", {"prompt": "Hi"}),
        ):
            body = {**asked, "model": "sql", "temperature": 0, "max_tokens": 20}
            before = await server.post(path, body)
            assert before.headers.get("x-ignored-parameters", "") == ("" if "chat" in path else "model")
            await load(server)
            answer = await server.post(path, body)
            assert "x-ignored-parameters" not in answer.headers
            assert answer.json()["choices"] != before.json()["choices"]
            await server.post(UNLOAD, {"lora_name": "sql"})


@pytest.mark.parametrize(
    "path",
    ["../secret", "/etc", "one/../../secret", ".", "", "leading/out", "a\0b", "x" * 1025, "..", "one/../.."],
)
async def test_paths_that_lead_elsewhere_are_refused(path: str, root: Path) -> None:
    os.symlink(root.parent, root / "leading")
    os.symlink(root.parent / "secret", root / "leading-out")
    async with serving(root) as server:
        for given in (path, "leading-out", str(root.parent / "secret")):
            refused = await load(server, path=given)
            assert refused.status_code == 400, given
            told = error_of(refused)
            assert told["error_type"] == "validation"
            assert told["error"].startswith(OUTSIDE), told
        assert await listed(server) == ["org/m"]


async def test_files_that_are_links_to_elsewhere_are_refused(root: Path) -> None:
    (root / "linked").mkdir()
    (root / "linked" / "adapter_config.json").write_text((root / "one" / "adapter_config.json").read_text())
    os.symlink(
        root.parent / "secret" / "adapter_model.safetensors", root / "linked" / "adapter_model.safetensors"
    )
    async with serving(root) as server:
        refused = await load(server, path="linked")
        assert (
            await load(server, path=str(root / "deep/two"))
        ).status_code == 200  # the whole path is one, too
    assert refused.status_code == 400
    assert error_of(refused)["error"].startswith(OUTSIDE)


def example(response: str, name: str) -> Any:
    content = DOCUMENT.components["responses"][response]["content"]["application/json"]
    return without_id(content["examples"][name]["value"])


async def test_refusals_are_as_the_contract_shows_them(root: Path, tmp_path: Path) -> None:
    assert len(ADAPTERS_BY_STATE) == 6
    async with serving(root) as server:
        unknown = await server.post(UNLOAD, {"lora_name": "sql"})
        gone = await load(server, path="sql-v2")
        outside = await load(server, path="../secrets")
        assert (await load(server)).status_code == 200
        again = await load(server)
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{name} {sha256(name.encode()).hexdigest()} {name}\n" for name in SCOPES))
    async with served(api_keys_file=str(keys)) as server:
        answers = [
            await server.http.post(
                path, json={"lora_name": "sql"}, headers={"authorization": f"Bearer {key}"}
            )
            for path, key in ((UNLOAD, "generate"), (UNLOAD, "admin"), ("/tokenize", "admin"))
        ]
    assert [each.status_code for each in answers] == [403, 403, 403]
    for answer, response, name in (
        (unknown, "AdapterNotFound", "adapter"),
        (gone, "AdapterNotFound", "directory"),
        (outside, "AdapterRefused", "outside"),
        (again, "AdapterRefused", "loaded"),
        (answers[0], "AdapterForbidden", "scope"),
        (answers[1], "AdapterForbidden", "off"),
    ):
        assert error_of(answer) == example(response, name)
    assert "This key has no scope `tokenize`" in error_of(answers[2])["error"]


async def test_an_engine_that_dies_meanwhile_is_told_of(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(root) as server:
        adapters = server.service.engine.adapters
        monkeypatch.setattr(adapters, "_core", Silent())
        waiting = asyncio.create_task(load(server))
        await asyncio.sleep(0.05)
        adapters.fail_all("The engine stopped")
        answer = await waiting
    assert (answer.status_code, error_of(answer)["error_type"]) == (424, "generation")


class Silent(FakeCore):
    """A core that says nothing of what it is asked."""

    def __init__(self) -> None:
        super().__init__(FakeModel(tokens=(1,), eos_token_id=0, texts=("a", "b")))

    def change(self, change: AdapterChange) -> None:
        """Say nothing."""


async def test_what_is_not_there_is_404(root: Path) -> None:
    async with serving(root) as server:
        gone = await load(server, path="sql-v9")
        unknown = await server.post(UNLOAD, {"lora_name": "gone"})
    words = "`lora_path` must be a directory with an adapter's files. There is none: sql-v9"
    assert (gone.status_code, error_of(gone)) == (404, {"error": words, "error_type": "not_found"})
    words = "The lora adapter 'gone' cannot be found."
    assert (unknown.status_code, error_of(unknown)) == (404, {"error": words, "error_type": "not_found"})


async def test_a_name_that_is_taken_is_refused_unless_it_is_to_be_replaced(root: Path) -> None:
    async with serving(root, lora_adapters=("start=somewhere",)) as server:
        assert (await load(server)).status_code == 200
        again = await load(server)
        texts = [await server.post("/generate", {"inputs": "Hi", "parameters": {"adapter_id": "sql"}})]
        assert (await load(server, load_inplace=True)).status_code == 200
        texts.append(await server.post("/generate", {"inputs": "Hi", "parameters": {"adapter_id": "sql"}}))
        others = [
            await load(server, name=name, load_inplace=True) for name in ("tgi", "org/m", "start", " ", "x\n")
        ]
        stays = await server.post(UNLOAD, {"lora_name": "start"})
        assert await listed(server) == ["org/m", "start", "sql"]
    assert again.status_code == 400
    assert "has already been loaded" in error_of(again)["error"]
    assert texts[0].json() != texts[1].json()  # nothing is known of the one before
    assert {each.status_code for each in (*others, stays)} == {400}


async def test_what_is_no_adapter_is_refused_as_at_the_start(root: Path) -> None:
    (root / "empty").mkdir()
    write_adapter(root / "pickled")
    (root / "pickled" / "adapter_model.safetensors").rename(root / "pickled" / "adapter_model.bin")
    async with serving(root) as server:
        empty, pickled = await load(server, path="empty"), await load(server, path="pickled")
    assert (empty.status_code, pickled.status_code) == (400, 400)
    assert "The adapter `sql` can't be loaded: no `adapter_config.json`" in error_of(empty)["error"]
    assert "only pickled weights, which can run code" in error_of(pickled)["error"]


async def test_without_a_directory_it_is_said_how_it_is_allowed() -> None:
    async with served() as server:
        for path, body in ((LOAD, {"lora_name": "a", "lora_path": "b"}), (UNLOAD, {"lora_name": "a"})):
            refused = await server.post(path, body)
            assert refused.status_code == 403
            words = "Adapters can't be loaded while the server runs: start it with --lora-directory"
            assert error_of(refused) == {"error": words, "error_type": "forbidden"}


async def test_a_text_that_has_begun_goes_on_to_its_end(root: Path) -> None:
    async with serving(root, fake={"step_seconds": 0.01}) as server:
        await load(server)
        asked = {"inputs": "Hi", "parameters": {"adapter_id": "sql", "max_new_tokens": 20}, "stream": True}
        expected = await server.post("/generate_stream", asked)
        running = asyncio.create_task(server.post("/generate_stream", asked))
        await asyncio.sleep(0.05)
        assert (await server.post(UNLOAD, {"lora_name": "sql"})).status_code == 200
        assert events_of(await running) == events_of(expected)
        assert (await server.post("/generate_stream", asked)).status_code == 422


async def test_unknown_members_are_reported(root: Path) -> None:
    async with serving(root) as server:
        answers = [await load(server, is_3d_lora_weight=True)]
        answers.append(await server.post(UNLOAD, {"lora_name": "sql", "lora_int_id": 3}))
    assert [each.headers["x-ignored-parameters"] for each in answers] == ["is_3d_lora_weight", "lora_int_id"]
