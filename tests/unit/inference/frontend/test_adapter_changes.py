"""Adapters that come and go, as who asks for them and for texts by them sees it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from inference.errors import AdapterRefused, GenerationFailed, InvalidInput
from inference.fakes.core import FakeCore, FakeModel
from inference.frontend.adapter_changes import AdapterChanges
from inference.frontend.preparation import renewed
from inference.types import AdapterChange, AdapterChanged, CoreRequest, LogprobsMode, Request, Sampling
from tests.unit.inference.puppet import MODEL, Puppet


class Asked(FakeCore):
    """A core that notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__(FakeModel(tokens=(1,), eos_token_id=0, texts=("a", "b")))
        self.changes: list[AdapterChange] = []

    def change(self, change: AdapterChange) -> None:
        self.changes.append(change)


def test_each_hears_what_became_of_its_own_wish() -> None:
    async def run() -> None:
        core = Asked()
        changes = AdapterChanges(core)
        wishes = [
            asyncio.create_task(changes.load("a", "from", replaces=True)),
            asyncio.create_task(changes.unload("b")),
            asyncio.create_task(changes.unload("c")),
            asyncio.create_task(changes.unload("d")),
        ]
        await asyncio.sleep(0)
        first, second, third, fourth = core.changes
        assert (first.name, first.source, first.replaces) == ("a", "from", True)
        assert (second.name, second.source, second.replaces) == ("b", None, False)
        changes.deliver(AdapterChanged(second.id, "there is none", missing=True))
        changes.deliver(AdapterChanged(first.id))
        wishes[3].cancel()
        await asyncio.sleep(0)
        changes.deliver(AdapterChanged(fourth.id))  # which nobody awaits any more
        changes.fail_all("The engine stopped")
        await wishes[0]
        with pytest.raises(AdapterRefused, match="there is none") as told:
            await wishes[1]
        assert told.value.missing
        with pytest.raises(GenerationFailed, match="The engine stopped"):
            await wishes[2]
        assert third.name == "c"

    asyncio.run(run())


def test_a_core_that_takes_none_is_not_asked() -> None:
    with pytest.raises(AdapterRefused, match="can't be loaded into this engine"):
        asyncio.run(AdapterChanges(Puppet()).unload("a"))


def test_what_was_prepared_goes_by_the_adapters_that_there_are_when_it_is_queued() -> None:
    before = replace(MODEL, adapters={"a": 0, "b": 65536})
    asked = Request(id="r", prompt="x", adapter="b")
    made = CoreRequest(
        id="r",
        prompt_ids=(1,),
        max_new_tokens=1,
        sampling=Sampling(),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=0,
        prompt_logprobs=False,
        adapter=65536,
    )
    assert renewed(made, asked, before, before) is made
    now = renewed(made, asked, before, replace(before, adapters={"a": 0, "b": 131073}))
    assert now == replace(made, adapter=131073)
    with pytest.raises(InvalidInput, match=r"must name a loaded adapter: loaded are `a`. Given: b"):
        renewed(made, asked, before, replace(before, adapters={"a": 0}))
    assert renewed(made, asked, before, replace(before, max_input_tokens=3)) is None
