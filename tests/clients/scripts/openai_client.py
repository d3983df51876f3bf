"""OpenAI's Python client."""

from __future__ import annotations

from typing import Any

from cases import run
from openai import OpenAI

MESSAGES: Any = [{"role": "user", "content": "Hi, who are you?"}]


def connect(url: str, key: str = "-") -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def chat(url: str) -> Any:
    answer = connect(url).chat.completions.create(
        model="gpt-4o", messages=MESSAGES, temperature=0, max_tokens=8
    )
    return answer.model_dump()


def chat_stream(url: str) -> Any:
    chunks = connect(url).chat.completions.create(
        model="tgi", messages=MESSAGES, temperature=0, max_tokens=8, stream=True
    )
    return [chunk.model_dump() for chunk in chunks]


def chat_stream_with_usage(url: str) -> Any:
    chunks = connect(url).chat.completions.create(
        model="tgi",
        messages=MESSAGES,
        temperature=0,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    return [chunk.model_dump() for chunk in chunks]


def chat_logprobs(url: str) -> Any:
    answer = connect(url).chat.completions.create(
        model="tgi", messages=MESSAGES, temperature=0, max_tokens=3, logprobs=True, top_logprobs=7
    )
    return answer.model_dump()


def continue_final_message(url: str) -> Any:
    messages: Any = [*MESSAGES, {"role": "assistant", "content": "I am a"}]
    answer = connect(url).chat.completions.create(model="tgi", messages=messages, temperature=0, max_tokens=8)
    return answer.model_dump()


def completion(url: str) -> Any:
    return (
        connect(url).completions.create(model="tgi", prompt="Once", temperature=0, max_tokens=8).model_dump()
    )


def completion_prompts(url: str) -> Any:
    """Send four prompts as TGI's integration test does: whole, and streamed."""
    prompts = ["Once upon", "Say this", "I", "The answer is"]
    client = connect(url)
    whole = client.completions.create(model="tgi", prompt=prompts, temperature=0, max_tokens=10)
    chunks = client.completions.create(model="tgi", prompt=prompts, temperature=0, max_tokens=10, stream=True)
    return {"whole": whole.model_dump(), "chunks": [chunk.model_dump() for chunk in chunks]}


def models(url: str) -> Any:
    client = connect(url)
    listed = [model.model_dump() for model in client.models.list()]
    return {"listed": listed, "found": client.models.retrieve(listed[0]["id"]).model_dump()}


def unknown_model(url: str) -> Any:
    return connect(url).models.retrieve("gpt-4").model_dump()


def validation_error(url: str) -> Any:
    return connect(url).chat.completions.create(model="tgi", messages=MESSAGES, top_p=7)


def validation_error_streamed(url: str) -> Any:
    return list(connect(url).chat.completions.create(model="tgi", messages=MESSAGES, top_p=7, stream=True))


def wrong_key(url: str) -> Any:
    return connect(url, "wrong").chat.completions.create(model="tgi", messages=MESSAGES)


def overloaded(url: str) -> Any:
    """Ask while a stream holds the only place, and once more after the stream was closed early."""
    client = connect(url, "secret")
    stream = client.completions.create(model="tgi", prompt="long", max_tokens=200, stream=True)
    next(stream)
    try:
        client.completions.create(model="tgi", prompt="test")
    except Exception as error:
        refused = type(error).__name__
    else:
        refused = "nothing"
    stream.close()
    client = OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=5)
    after = client.completions.create(model="tgi", prompt="test", max_tokens=1)
    return {"refused": refused, "after": after.choices[0].finish_reason}


def generation_error_in_a_stream(url: str) -> Any:
    client = connect(url, "secret")
    return list(client.completions.create(model="tgi", prompt="please fail", max_tokens=9, stream=True))


ON_ANY_SERVER = [
    *(chat, chat_stream, chat_stream_with_usage, chat_logprobs, continue_final_message),
    *(completion, completion_prompts, models, unknown_model, validation_error, validation_error_streamed),
]
ON_A_NARROW_SERVER = [wrong_key, overloaded, generation_error_in_a_stream]

if __name__ == "__main__":
    run([*ON_ANY_SERVER, *ON_A_NARROW_SERVER])
