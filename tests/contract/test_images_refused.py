"""What is no image, or isn't fetched: refused with its place and the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from handlers.settings.table import Settings
from inference.fakes.core import fake_client
from inference.fakes.vision import BROKEN, FAKE_VISION
from tests.contract.seeing import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    WHERE,
    Serve,
    answered,
    chat,
    data_url,
    image,
    prompt,
    refused,
    text,
)
from tests.contract.test_examples_of_errors import example
from tests.image_server import RED, ImageServer
from tests.support import error_of, live_server, make_service

TORN = RED + BROKEN

# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("red.png", "invalid image content: 'red.png': send the image itself"),
        ("file:///etc/passwd", "invalid image content: 'file:///etc/passwd': send"),
        ("x" * 1000, f"invalid image content: '{'x' * 80}'...: send the image itself"),
        ("data:image/png,abc", "invalid image content: 'data:image/png,abc': send the image itself"),
        ("data:text/html;base64,YQ==", "invalid image content: its type is 'text/html': send"),
        ("data:image/png;base64,a", "base64 encoding is invalid: "),
        ("data:image/png;base64,YWJj YWJj", "base64 encoding is invalid: "),
        ("data:image/png;base64,YWJj====", "base64 encoding is invalid: "),
        ("data:image/png;base64,YWJä", "base64 encoding is invalid: it is not ASCII: send"),
        ("data:image/png;base64,", "invalid image: it is no PNG, JPEG, GIF, WebP, TIFF or BMP: send one"),
        ("data:image/png;base64,YWJj", "invalid image: it is no PNG, JPEG, GIF, WebP, TIFF or BMP: send one"),
        ("http://127.0.0.1/", "Could not fetch image: its host is not known, or not at a public address: "),
        ("http://localhost:22/", "Could not fetch image: its port is 22, and neither 80 nor 443: "),
        ("http://a:b@x.org/", "Could not fetch image: its URL has a user's name or password"),
    ],
)
def test_what_is_no_image_is_refused_with_its_place(url: str, message: str, seeing: httpx.Client) -> None:
    assert refused(seeing, CHAT, chat(image(url))).startswith(WHERE + message)
    assert refused(seeing, CHAT, chat(image(url), stream=True)).startswith(WHERE + message)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nothing", "Could not fetch image: its host answers with the status 404"),
        ("/page.html", "invalid image: it is no PNG, JPEG, GIF, WebP, TIFF or BMP: send one of these"),
        ("/zipped.png", "Could not fetch image: its host compresses it, which wasn't asked for"),
        (
            "/endless.png",
            "Image size {} bytes exceeds maximum allowed size of 1000 bytes (`max_image_fetch_size`): "
            "send a smaller one",
        ),
    ],
)
def test_what_is_fetched_and_no_image_is_refused(
    path: str, message: str, serve: Serve, images: ImageServer
) -> None:
    live = serve(max_image_fetch_size=1000)
    with live.client() as http:
        told = refused(http, CHAT, chat(text("Look"), image(images.url(path))))
    before, found, after = message.partition("{}")
    assert told.startswith("`messages[0].content[1].image_url.url`: " + before)
    assert not found or told.endswith(after)


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ((GENERATE, {"inputs": "a![](b)"}), "`inputs`, image 1: "),
        ((GENERATE, {"inputs": f"![]({data_url(RED)})![](b)"}), "`inputs`, image 2: "),
        ((COMPLETIONS, {"prompt": "![](b)"}), "`prompt`, image 1: "),
        ((COMPLETIONS, {"prompt": ["a", "![](b)"]}), "`prompt[1]`, image 1: "),
        (
            ("/vertex", {"instances": [{"inputs": "a"}, {"inputs": "![](b)"}]}),
            "instances[1]: `inputs`, image 1: ",
        ),
        (("/v2/models/m/infer", {"inputs": [{"data": ["a", "![](b)"]}]}), "data[1]: `inputs`, image 1: "),
    ],
)
def test_an_image_of_a_prompt_is_refused_with_its_number(
    body: tuple[str, dict[str, Any]], where: str, seeing: httpx.Client
) -> None:
    assert refused(seeing, *body).startswith(f"{where}invalid image content: 'b': send the image itself")


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        (CHAT, chat(image(data_url(RED)), image(data_url(TORN))), "`messages[0].content[1].image_url.url`"),
        (CHAT, chat(image(data_url(TORN)), n=2, stream=True), "`messages[0].content[0].image_url.url`"),
        (GENERATE, {"inputs": f"![]({data_url(RED)})![]({data_url(TORN)})"}, "`inputs`, image 2"),
        ("/generate_stream", {"inputs": f"![]({data_url(TORN)})"}, "`inputs`, image 1"),
        (COMPLETIONS, {"prompt": ["a", f"![]({data_url(TORN)})"]}, "`prompt[1]`, image 1"),
        (
            "/vertex",
            {"instances": [{"inputs": "a"}, chat(image(data_url(TORN)))]},
            "instances[1]: `messages[0].content[0].image_url.url`",
        ),
    ],
)
def test_an_image_that_the_engine_can_not_read_is_refused_with_its_place(
    path: str, body: dict[str, Any], where: str, seeing: httpx.Client
) -> None:
    assert refused(seeing, path, body) == f"{where}: invalid image: it is broken"


def test_an_image_at_a_private_address_is_refused_as_the_contract_shows(seeing: httpx.Client) -> None:
    response = seeing.post(CHAT, json=chat(image("http://127.0.0.1/cat.png")))
    assert (response.status_code, error_of(response)) == (422, example("InvalidChat", "image"))


def test_the_models_own_mark_in_a_text_is_refused(seeing: httpx.Client) -> None:
    told = refused(seeing, CHAT, chat(text(f"{FAKE_VISION.token} is a tag"), image(data_url(RED))))
    assert told.startswith(
        "the prompt has 2 times `<image>`, by which this model marks an image, for 1 image:"
    )


def test_a_model_that_sees_and_can_not_be_shown_images_says_why() -> None:
    settings = Settings(validate_responses=True)
    vision = replace(FAKE_VISION, reason="its way to see isn't known")
    engine = fake_client(settings.engine_config(), vision=vision)
    with live_server(make_service(settings, engine)) as live, live.client() as http:
        info = http.get("/info").json()
        assert info["input_modalities"] == ["text"]
        assert info["images_refused"] == vision.reason
        told = refused(http, CHAT, chat(image(data_url(RED))))
        assert (
            told
            == f"{WHERE}this model can't be given images here: its way to see isn't known: send text only"
        )
        answered(http, GENERATE, prompt(f"![]({data_url(RED)})What is it?"))  # a text, as for the blind


def test_fetching_can_be_switched_off(serve: Serve, images: ImageServer) -> None:
    images.asked.clear()
    with serve(image_fetching="off").client() as http:
        answered(http, CHAT, chat(image(data_url(RED))))
        told = refused(http, CHAT, chat(image(images.url("/red.png"))))
    assert told == (
        f"{WHERE}Could not fetch image: this server fetches none (`image_fetching`): "
        "send the image itself, as data:image/png;base64,..."
    )
    assert images.asked == {}


def test_only_named_hosts_may_be_asked(serve: Serve, images: ImageServer) -> None:
    with serve(image_fetching="named").client() as http:
        answered(http, CHAT, chat(image(images.url("/red.png"))))
        told = refused(http, CHAT, chat(image("https://example.com/cat.png")))
    assert told.startswith(f"{WHERE}Could not fetch image: its host is not one of `image_hosts`: ")
