"""Images in every kind of prompt, through a socket, seen by a fake engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from inference.fakes.vision import FAKE_VISION, IMAGE_TOKENS
from tests.contract.seeing import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    answered,
    chat,
    data_url,
    image,
    prompt,
    said,
    text,
)
from tests.contract.serving import events_of
from tests.image_server import BLUE, RED, ImageServer
from tests.support import live_server

# --- what the model is told --------------------------------------------------------------------


def test_what_the_model_takes_is_told(seeing: httpx.Client) -> None:
    info = seeing.get("/info").json()
    assert info["model_pipeline_tag"] == "image-text-to-text"
    assert info["input_modalities"] == ["text", "image"]
    assert seeing.get("/v1/models").json()["data"][0]["input_modalities"] == ["text", "image"]
    with live_server() as blind:
        assert blind.get("/info").json()["input_modalities"] == ["text"]


def test_an_answer_depends_on_the_images_bytes_and_on_where_it_stands(seeing: httpx.Client) -> None:
    red, blue = image(data_url(RED)), image(data_url(BLUE))
    bodies = [
        chat(text("What is it?"), red),
        chat(text("What is it?"), blue),
        chat(red, text("What is it?")),
        chat(text("What is it?"), red, red),
        chat(text("What is it?"), red, blue),
        chat(text("What is it?"), blue, red),
    ]
    answers = [answered(seeing, CHAT, body) for body in bodies]
    assert len({said(answer) for answer in answers}) == len(bodies)
    again = answered(seeing, CHAT, bodies[0])
    assert said(again) == said(answers[0])
    told = [answer["usage"]["prompt_tokens"] for answer in answers]
    assert told[0] == told[1] == told[2]
    assert told[3] - told[0] > IMAGE_TOKENS  # and what stands around it


def test_an_image_is_the_same_whatever_way_it_comes(seeing: httpx.Client, images: ImageServer) -> None:
    url = images.url("/red.png")
    bodies = [
        chat(image(data_url(RED))),
        chat(image(data_url(RED, "application/octet-stream"))),
        chat(image(data_url(RED).replace("image/png", "IMAGE/JPEG;x=y"))),
        chat(image(url)),
        chat({"type": "image_url", "image_url": url}),
        chat(image(url, detail="auto")),
        chat(image(images.url("/to//red.png"))),
    ]
    assert len({said(answered(seeing, CHAT, body)) for body in bodies}) == 1


def test_how_closely_to_look_is_reported_as_ignored(seeing: httpx.Client) -> None:
    response = seeing.post(CHAT, json=chat(image(data_url(RED), detail="high")))
    assert response.status_code == 200
    assert response.headers["x-ignored-parameters"] == "messages[].content[].image_url.detail"


def test_images_of_earlier_turns_systems_and_tools_are_seen(seeing: httpx.Client) -> None:
    def told(role: str, url: str, **members: Any) -> Any:
        before = {"role": role, "content": [text("Look."), image(url)], **members}
        last = {"role": "user", "content": "What was it?"}
        return answered(seeing, CHAT, {"messages": [before, last], "temperature": 0, "max_tokens": 12})

    for role, members in (("user", {}), ("system", {}), ("assistant", {}), ("tool", {"tool_call_id": "0"})):
        red, blue = (told(role, data_url(data), **members) for data in (RED, BLUE))
        assert said(red) != said(blue), role


def test_a_stream_says_what_the_whole_answer_says(seeing: httpx.Client, images: ImageServer) -> None:
    body = chat(image(images.url("/red.png")), text("What is it?"))
    whole = said(answered(seeing, CHAT, body))
    streamed = events_of(seeing.post(CHAT, json={**body, "stream": True}))
    assert whole == "".join(event["choices"][0]["delta"].get("content") or "" for event in streamed[:-1])


def test_several_answers_see_the_same_images(seeing: httpx.Client, images: ImageServer) -> None:
    images.asked.clear()
    body = chat(image(images.url("/red.png")), image(images.url("/red.png")), n=2, temperature=1, seed=1)
    assert len(answered(seeing, CHAT, body)["choices"]) == 2
    assert images.asked == {"/red.png": 1}


def test_a_tool_may_be_called_about_an_image(seeing: httpx.Client) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    body = chat(
        image(data_url(RED)),
        tools=[{"type": "function", "function": function}],
        tool_choice="required",
        max_tokens=60,
    )
    calls = answered(seeing, CHAT, body)["choices"][0]["message"]["tool_calls"]
    assert {call["function"]["name"] for call in calls} == {"f"}


# --- the other ways to ask ---------------------------------------------------------------------


def test_markdown_images_of_prompts_are_seen_as_in_tgi(seeing: httpx.Client, images: ImageServer) -> None:
    def generated(inputs: str) -> Any:
        return answered(seeing, GENERATE, prompt(inputs))

    red, blue = (generated(f"![]({data_url(data)})What is it?") for data in (RED, BLUE))
    assert red["generated_text"] != blue["generated_text"]
    assert red == generated(f"![]({images.url('/red.png')})What is it?")
    words = generated(f"![alt]({data_url(RED)})What is it?")  # with a text it is a text
    assert words["details"] != red["details"]


def test_every_route_of_prompts_sees(seeing: httpx.Client) -> None:
    def both(path: str, body: Callable[[str], dict[str, Any]], found: Callable[[Any], Any]) -> None:
        answers = [answered(seeing, path, body(f"![]({data_url(data)})Look")) for data in (RED, BLUE)]
        assert found(answers[0]) != found(answers[1])

    both("/", prompt, lambda answer: answer[0]["generated_text"])
    both("/invocations", prompt, lambda answer: answer[0]["generated_text"])
    both(COMPLETIONS, lambda given: {"prompt": given, "temperature": 0}, lambda a: a["choices"][0]["text"])
    greedy = {"do_sample": False, "max_new_tokens": 8}
    both(
        "/vertex",
        lambda given: {"instances": [{"inputs": given, "parameters": greedy}]},
        lambda answer: answer["predictions"],
    )
    both(
        "/v2/models/m/infer",
        lambda given: {"inputs": [{"data": [given]}], "parameters": greedy},
        lambda answer: answer["outputs"],
    )


def test_a_stream_of_a_prompt_says_what_the_whole_answer_says(seeing: httpx.Client) -> None:
    body = prompt(f"![]({data_url(RED)})Look")
    events = events_of(seeing.post("/generate_stream", json=body))
    whole = answered(seeing, GENERATE, body)["generated_text"]
    assert whole == events[-1]["generated_text"]


def test_the_prompt_that_is_given_back_is_the_one_that_was_sent(seeing: httpx.Client) -> None:
    inputs = f"![]({data_url(RED)})Look"
    body = prompt(inputs)
    body["parameters"]["return_full_text"] = True
    assert answered(seeing, GENERATE, body)["generated_text"].startswith(inputs)


def test_prompts_of_one_body_have_images_of_their_own(seeing: httpx.Client) -> None:
    red, blue = (f"![]({data_url(data)})Look" for data in (RED, BLUE))
    body = {"prompt": ["Look", red, blue + blue, red], "temperature": 0, "max_tokens": 8}
    texts = [choice["text"] for choice in answered(seeing, COMPLETIONS, body)["choices"]]
    assert texts[1] == texts[3]
    assert len(set(texts)) == 3
    alone = answered(seeing, COMPLETIONS, {**body, "prompt": blue + blue})
    assert alone["choices"][0]["text"] == texts[2]


def test_chats_at_the_addresses_of_clouds_see(seeing: httpx.Client) -> None:
    body = chat(image(data_url(RED)))
    told = said(answered(seeing, CHAT, body))
    assert said(answered(seeing, "/invocations", body)) == told
    assert answered(seeing, "/vertex", {"instances": [body]})["predictions"] == [told]


def test_a_rendered_conversation_shows_the_mark_and_fetches_nothing(
    seeing: httpx.Client, images: ImageServer
) -> None:
    images.asked.clear()
    body = {"messages": chat(text("Look: "), image(images.url("/red.png")))["messages"]}
    told = answered(seeing, "/chat_tokenize", body)
    assert f"Look: {FAKE_VISION.placeholder}" in told["templated_text"]
    assert images.asked == {}


def test_images_in_texts_of_chats_and_of_tokenize_are_text(seeing: httpx.Client, images: ImageServer) -> None:
    images.asked.clear()
    inputs = f"![]({images.url('/red.png')})"
    answered(seeing, CHAT, chat(text(inputs)))
    answered(seeing, "/tokenize", {"inputs": inputs})
    assert images.asked == {}
