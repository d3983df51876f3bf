"""huggingface_hub's InferenceClient."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cases import run
from huggingface_hub import InferenceClient
from images import BLUE, RED

PROMPT = "Hello, how are"
MESSAGES: Any = [{"role": "user", "content": "Hi, who are you?"}]


def text(url: str) -> Any:
    return InferenceClient(url).text_generation(PROMPT, max_new_tokens=8)


def details(url: str) -> Any:
    answer = InferenceClient(url).text_generation(PROMPT, max_new_tokens=8, details=True, top_n_tokens=2)
    return asdict(answer)


def best_of(url: str) -> Any:
    client = InferenceClient(url)
    answer = client.text_generation(PROMPT, max_new_tokens=4, details=True, best_of=2, do_sample=True)
    return asdict(answer)


def streamed(url: str) -> Any:
    client = InferenceClient(url)
    plain = list(client.text_generation(PROMPT, max_new_tokens=8, stream=True))
    events = client.text_generation(PROMPT, max_new_tokens=8, stream=True, details=True)
    return {"plain": plain, "events": [asdict(event) for event in events]}


def chat(url: str) -> Any:
    client = InferenceClient(base_url=url)
    return asdict(client.chat_completion(MESSAGES, max_tokens=8, temperature=0.0))


def chat_stream_with_usage(url: str) -> Any:
    client = InferenceClient(base_url=url)  # held, because it closes its streams when it goes
    chunks = client.chat_completion(
        MESSAGES, max_tokens=8, temperature=0.0, stream=True, stream_options={"include_usage": True}
    )
    return [asdict(chunk) for chunk in chunks]


def images(url: str) -> Any:
    """Ask about images: as parts of a chat, and in a prompt as TGI has them."""

    def about(data: str) -> Any:
        part = {"type": "image_url", "image_url": {"url": data}}
        return [{"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]}]

    chats, texts = InferenceClient(base_url=url), InferenceClient(url)
    return {
        "chats": [
            asdict(chats.chat_completion(about(data), max_tokens=8, temperature=0.0)) for data in (RED, BLUE)
        ],
        "texts": [
            texts.text_generation(f"![]({data})What is it?", max_new_tokens=8, do_sample=False)
            for data in (RED, BLUE)
        ],
    }


def endpoint_info(url: str) -> Any:
    return InferenceClient(url, provider="hf-inference").get_endpoint_info()


def health(url: str) -> Any:
    return InferenceClient(url, provider="hf-inference").health_check()


def validation_error(url: str) -> Any:
    return InferenceClient(url).text_generation(PROMPT, max_new_tokens=10_000)


def validation_error_streamed(url: str) -> Any:
    return list(InferenceClient(url).text_generation(PROMPT, max_new_tokens=10_000, stream=True))


def overloaded(url: str) -> Any:
    """Ask while a stream holds the only place."""
    client = InferenceClient(url, token="secret")
    stream = iter(client.text_generation("long", max_new_tokens=200, stream=True))
    next(stream)
    try:
        return client.text_generation("test")
    finally:
        list(stream)


def generation_error(url: str) -> Any:
    return InferenceClient(url, token="secret").text_generation("please fail")


ON_ANY_SERVER = [
    *(text, details, best_of, streamed, chat, chat_stream_with_usage, endpoint_info, health),
    *(validation_error, validation_error_streamed),
]
ON_A_NARROW_SERVER = [overloaded, generation_error]

if __name__ == "__main__":
    run([*ON_ANY_SERVER, *ON_A_NARROW_SERVER, images])
