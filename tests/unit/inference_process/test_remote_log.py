"""What an engine says while it loads in another's place is in the log once, however many are attached."""

from __future__ import annotations

import asyncio
import logging

import pytest

from inference.core import Life
from inference.process.remote import RemoteCore
from tests.unit.inference.puppet import MODEL
from tests.unit.inference_process.serving import listening
from tests.unit.inference_process.test_remote import Ear, Replaced, attached


def test_only_who_gets_the_numbers_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with listening() as address:
        engine = Replaced(address)
        engine.ready()

        async def check(first: RemoteCore, ear: Ear) -> None:
            async def other(second: RemoteCore, other_ear: Ear) -> None:
                await asyncio.to_thread(engine.end)
                engine.begin()
                await ear.wait(lambda: bool(ear.lives))
                await other_ear.wait(lambda: bool(other_ear.lives))
                engine.server.progress("Loading")
                engine.server.unavailable("There is no such model")
                engine.ready()
                await ear.wait(lambda: ear.lives[-1] == (Life.UP, MODEL))
                await other_ear.wait(lambda: other_ear.lives[-1] == (Life.UP, MODEL))

            await attached(address.path, other, stats=False)

        asyncio.run(attached(address.path, check))
        engine.end()
    told = [record.getMessage() for record in caplog.records if record.name == "inference.process.remote"]
    assert ["Loading", "There is no such model"] == told
