"""What Prometheus would scrape of a server that has answered something of everything."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from tests.contract.serving import Served, served
from tests.deploy.promql import Sample

# of the scrape itself: what Prometheus, in Kubernetes or not, puts on each sample
TARGET = {
    "job": "parley",
    "instance": "10.0.0.1:80",
    "container": "parley",
    "namespace": "default",
    "pod": "parley-0",
}
FAILING = "make the engine fail"


async def traffic(server: Served) -> None:
    """Ask for texts, some beside each other, and for what is refused or fails."""

    def body(text: str, tokens: int) -> dict[str, object]:
        return {"inputs": text, "parameters": {"max_new_tokens": tokens}}

    first = asyncio.create_task(server.post("/generate_stream", body("one", 200)))
    await asyncio.sleep(0.05)
    answers = await asyncio.gather(*(server.post("/generate", body(f"beside {at}", 20)) for at in range(3)))
    assert {200} == {answer.status_code for answer in answers}
    assert 422 == (await server.post("/generate", body("", 1))).status_code
    assert 424 == (await server.post("/generate", body(FAILING, 5))).status_code
    assert 200 == (await server.http.get("/health")).status_code
    await first


def scrape(exposition: str) -> list[Sample]:
    """Return the samples, a counter's under the name that it is shown with."""
    samples = []
    for family in text_string_to_metric_families(exposition):
        for each in family.samples:
            name = family.name if family.type == "counter" else each.name
            samples.append(Sample(name, each.labels | TARGET, each.value))
    return [*samples, Sample("up", TARGET, 1.0)]


async def scraped() -> list[Sample]:
    """Return the samples of a server on the fake engine."""
    fake = {"fail_prompts": [FAILING], "step_seconds": 0.002}
    async with served(fake=fake) as server:
        await traffic(server)
        return scrape(server.service.metrics.render().decode())
