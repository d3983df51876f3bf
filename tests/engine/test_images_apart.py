"""Who salts otherwise is looked at anew: no time tells which images others have shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inference.engine.engine import TorchCore
from inference.frontend.client import EngineClient
from inference.vision.reader import Picture
from tests.engine.seeing import Case, Toy, answer, make_toy, with_client

CASE: Case = ("What {} is this?", (1,))


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    directory: Path = tmp_path_factory.mktemp("llava")
    return make_toy("llava", directory)


@pytest.mark.parametrize(
    ("isolated", "read"), [(False, [1, 1, 1, 2]), (True, [1, 1, 2, 3])], ids=["shared", "isolated"]
)
def test_an_image_is_known_to_those_alone_who_share_the_prefix_cache(
    toy: Toy, isolated: bool, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: EngineClient, core: TorchCore) -> None:
        assert core._looker is not None
        reader, files = core._looker._reader, list[bytes]()
        own = reader.read

        def read_once_more(data: bytes) -> Picture:
            files.append(data)
            return own(data)

        monkeypatch.setattr(reader, "read", read_once_more)
        seen = []
        for id, owner, salt in (("a", "ann", ""), ("b", "ann", ""), ("c", "bob", ""), ("d", "ann", "mine")):
            request = replace(toy.request(id, CASE), owner=owner, cache_salt=salt)
            await answer(client, request)
            seen.append(len(files))
        assert seen == read

    with_client(toy, test, isolate_owners=isolated)
