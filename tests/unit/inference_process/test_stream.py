"""Streams to the engine's socket that can't be had at once."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from inference.core import Life
from inference.process import stream
from inference.process.remote import RemoteCore
from tests.unit.inference_process.serving import listening
from tests.unit.inference_process.test_remote import Ear, Replaced, attached, request


@pytest.mark.parametrize("shortage", [errno.EMFILE, errno.ENOBUFS, errno.EAGAIN])
def test_a_shortage_that_passes_does_not_keep_it_from_an_engine_that_is_back(
    shortage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.process.remote.PAUSE_SECONDS", 0.01)
    real, left = stream._greeting, 2

    def short(address: str, hello: bytes, waits: bool) -> socket.socket:
        nonlocal left
        left -= 1
        if left >= 0:
            raise OSError(shortage, "there is too little of something")
        return real(address, hello, waits)

    with listening() as address:
        engine = Replaced(address)
        engine.ready()

        async def check(core: RemoteCore, ear: Ear) -> None:
            core.submit(request("a"))
            monkeypatch.setattr(stream, "_greeting", short)
            await asyncio.to_thread(engine.end)
            await ear.wait(lambda: len(ear.lives) == 1)
            engine.begin()
            engine.ready()
            await ear.wait(lambda: len(ear.lives) == 2)
            assert [life for life, _ in ear.lives] == [Life.DOWN, Life.UP]
            assert (core.alive, left) == (True, -1)

        asyncio.run(attached(address.path, check))
        engine.end()
