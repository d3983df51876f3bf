"""TGI's own Python client, 0.7.0."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cases import run
from text_generation import AsyncClient, Client
from text_generation.types import Message

PROMPT = "Hello, how are"


def dump(model: Any) -> Any:
    return model.model_dump(mode="json")


def generate(url: str) -> Any:
    return dump(Client(url).generate("test", max_new_tokens=1, decoder_input_details=True))


def generate_best_of(url: str) -> Any:
    return dump(Client(url).generate("test", max_new_tokens=1, best_of=2, do_sample=True))


def generate_not_found(url: str) -> Any:
    return dump(Client(f"{url}/no-such-model").generate("test"))


def generate_validation_error(url: str) -> Any:
    return dump(Client(url).generate("test", max_new_tokens=10_000))


def generate_stream(url: str) -> Any:
    return [dump(event) for event in Client(url).generate_stream("test", max_new_tokens=1)]


def generate_stream_not_found(url: str) -> Any:
    return list(Client(f"{url}/no-such-model").generate_stream("test"))


def generate_stream_validation_error(url: str) -> Any:
    return list(Client(url).generate_stream("test", max_new_tokens=10_000))


def async_generate(url: str) -> Any:
    return dump(asyncio.run(AsyncClient(url).generate("test", max_new_tokens=1)))


def async_generate_stream(url: str) -> Any:
    async def collect() -> list[Any]:
        return [dump(event) async for event in AsyncClient(url).generate_stream("test", max_new_tokens=1)]

    return asyncio.run(collect())


def async_validation_error(url: str) -> Any:
    return dump(asyncio.run(AsyncClient(url).generate("test", max_new_tokens=10_000)))


def all_parameters(url: str) -> Any:
    """Send the parameters of TGI's integration test `all_params`; `typical_p` and the others at once."""
    answer = Client(url).generate(
        PROMPT,
        max_new_tokens=10,
        repetition_penalty=1.2,
        return_full_text=True,
        stop_sequences=["test"],
        temperature=0.5,
        top_p=0.9,
        top_k=10,
        truncate=5,
        typical_p=0.9,
        seed=0,
        decoder_input_details=True,
    )
    return dump(answer)


def streamed_and_whole(url: str) -> Any:
    client = Client(url)
    events = list(client.generate_stream(PROMPT, max_new_tokens=12, top_n_tokens=3))
    whole = client.generate(PROMPT, max_new_tokens=12, top_n_tokens=3)
    return {"events": [dump(event) for event in events], "whole": dump(whole)}


def load(url: str) -> Any:
    """Send four equal requests at a time, as TGI's integration tests do."""
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda _: Client(url).generate(PROMPT, max_new_tokens=10), range(4))
    return [answer.generated_text for answer in answers]


def chat(url: str) -> Any:
    messages = [Message(role="user", content="Hi")]
    return dump(Client(url).chat(messages, max_tokens=8, seed=1, logprobs=True))


def overloaded(url: str) -> Any:
    """Ask while a stream holds the only place, and once more after it."""
    client = Client(url, headers={"Authorization": "Bearer secret"})
    stream = client.generate_stream("long", max_new_tokens=200)
    next(stream)
    try:
        client.generate("test")
    except Exception as error:
        refused = type(error).__name__
    else:
        refused = "nothing"
    list(stream)
    return {"refused": refused, "after": client.generate("test", max_new_tokens=1).generated_text}


def generation_error(url: str) -> Any:
    return dump(Client(url, headers={"Authorization": "Bearer secret"}).generate("please fail"))


ON_ANY_SERVER = [
    *(generate, generate_best_of, generate_not_found, generate_validation_error),
    *(generate_stream, generate_stream_not_found, generate_stream_validation_error),
    *(async_generate, async_generate_stream, async_validation_error),
    *(all_parameters, streamed_and_whole, load, chat),
]
ON_A_NARROW_SERVER = [overloaded, generation_error]

if __name__ == "__main__":
    run([*ON_ANY_SERVER, *ON_A_NARROW_SERVER])
