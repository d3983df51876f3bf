"""TGI's Grafana board on the real engine: what it shows was measured, and comes to rest when nothing runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from inference.environment import prepare_environment

prepare_environment()

pytest.importorskip("torch")

import httpx  # noqa: E402

from handlers.app import create_app  # noqa: E402
from handlers.metrics.metrics import Metrics  # noqa: E402
from handlers.service import Service  # noqa: E402
from handlers.settings.table import Settings  # noqa: E402
from inference.engine.engine import TorchCore  # noqa: E402
from inference.frontend.client import EngineClient  # noqa: E402
from inference.text.pipeline import load_text  # noqa: E402
from inference.types import Request  # noqa: E402
from tests.contract.serving import Served, lifespan, until_ready  # noqa: E402
from tests.deploy.promql import read  # noqa: E402
from tests.deploy.scraped import scrape  # noqa: E402
from tests.deploy.test_grafana import TGIS, UNFED, panels, shown, with_variables  # noqa: E402

SETTINGS = Settings(engine_process=False, compute_threads=1, max_batch_total_tokens=8192)


def serve(test: Callable[[Served], Awaitable[None]]) -> None:
    """Run a test on an application with the embedded model."""
    config = SETTINGS.engine_config()
    engine = EngineClient(TorchCore(config), config, lambda: load_text(config.model))
    service = Service(SETTINGS, engine, Metrics())
    app = create_app(service)

    async def run() -> None:
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://parley")
        async with lifespan(app), http:
            await until_ready(service)
            await test(Served(http, service, app))

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that comes soon."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - nobody tells of a metric
            await asyncio.sleep(0.001)


def body(tokens: int) -> dict[str, object]:
    """Return a request for so many tokens, whatever the model says."""
    return {"inputs": "Once upon a time", "parameters": {"max_new_tokens": tokens, "do_sample": False}}


@pytest.mark.skipif(not TGIS.is_file(), reason=f"TGI's board is not at {TGIS}")
def test_every_panel_of_tgis_board_shows_what_the_engine_measured() -> None:
    async def check(server: Served) -> None:
        first = asyncio.create_task(server.post("/generate_stream", body(300)))
        await until(lambda: server.metric("tgi_batch_current_size") > 0)
        await server.post("/generate", body(5))
        await server.post("/generate", {"inputs": ""})
        await first
        samples = scrape(server.service.metrics.render().decode())
        dark = {
            title
            for title, queries in panels(TGIS)
            if not all(shown(read(with_variables(query)), samples) for query in queries)
        }
        assert UNFED.keys() == dark
        sums = {each.name: each.value for each in samples if each.name.endswith("_sum")}
        for part in ("forward", "decode", "filter", "concat"):
            assert 0 < sums[f"tgi_batch_{part}_duration_sum"] < sums["tgi_request_duration_sum"]

    serve(check)


def test_the_gauges_come_to_rest_when_the_last_client_leaves() -> None:
    gauges = (
        "tgi_batch_current_size",
        "tgi_batch_current_max_tokens",
        "tgi_queue_size",
        "parley_kv_cache_usage",
    )

    async def check(server: Served) -> None:
        request = Request(id="leaves", prompt="Once", max_new_tokens=1000, ignore_eos=True)
        generation = await server.service.engine.submit(request)
        await anext(generation)
        await until(lambda: server.metric("parley_kv_cache_usage") > 0)
        await generation.aclose()
        await until(lambda: not any(server.metric(name) for name in gauges))

    serve(check)
