"""Answers have the headers that the document names, errors too."""

from __future__ import annotations

import pytest
from connexion.middleware.abstract import ROUTING_CONTEXT
from starlette.types import Message, Receive, Scope, Send

from handlers.http.exchange import Exchange, attach
from handlers.http.responses import ContractViolation
from tests.contract.serving import served, with_declared_headers

pytestmark = pytest.mark.anyio

UNHEARD = {"inputs": "Hi", "unheard": 1}
REFUSED = UNHEARD | {"parameters": {"max_new_tokens": 0}}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "unheard": 1}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_an_error_does_not_name_members_without_effect() -> None:
    async with served(fake={"fail_prompts": ["fail"]}) as server:
        answers = [
            await server.post("/generate", REFUSED),
            await server.post("/generate_stream", REFUSED),
            await server.post("/invocations", REFUSED),
            await server.post("/v1/chat/completions", CHAT | {"temperature": -1}),
            await server.post("/generate", UNHEARD | {"inputs": "fail"}),
        ]
        assert [422, 422, 422, 422, 424] == [answer.status_code for answer in answers]
        assert not any("x-ignored-parameters" in answer.headers for answer in answers)
        answer = await server.post("/generate", UNHEARD | {"parameters": {"max_new_tokens": 1}})
        assert "unheard" == answer.headers["x-ignored-parameters"]


async def test_a_header_that_the_document_does_not_name_is_found() -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"0"), (b"x-request-id", b"1"), (b"x-total-time", b"1")]
        await send({"type": "http.response.start", "status": 422, "headers": headers})

    async def nothing() -> Message:
        return {"type": "http.disconnect"}

    async def sent(message: Message) -> None:
        assert message["status"] == 422

    violations: list[ContractViolation] = []
    scope: Scope = {"type": "http"}
    attach(scope, Exchange("1", 0.0))
    scope["extensions"][ROUTING_CONTEXT] = {"operation_id": "generate"}
    await with_declared_headers(answer, violations)(scope, nothing, sent)
    assert ["generate: 422 has undeclared headers: x-total-time"] == [str(each) for each in violations]
