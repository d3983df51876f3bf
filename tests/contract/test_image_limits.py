"""How many images, of how many bytes, for how long; what is held is given back."""

from __future__ import annotations

import json

from tests.contract.late import loading
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
from tests.image_server import BLUE, RED, ImageServer
from tests.security.raw import connected, head, wait_until
from tests.support import error_of, live_server, make_service, message_of

# --- limits ------------------------------------------------------------------------------------


def test_images_are_counted_over_a_whole_body(serve: Serve) -> None:
    with serve(max_images=2).client() as http:
        red = image(data_url(RED))
        answered(http, CHAT, chat(red, red))
        told = refused(http, CHAT, chat(red, red, red))
        assert told == (
            "`messages[0].content[2].image_url.url`: a request must have at most 2 images (`max_images`). "
            "Given: 3. Send fewer"
        )
        markdown = f"![]({data_url(RED)})"
        assert "at most 2 images" in refused(http, COMPLETIONS, {"prompt": [markdown, markdown, markdown]})
        instances = [{"inputs": markdown}, {"inputs": markdown}, {"inputs": markdown}]
        assert "at most 2 images" in refused(http, "/vertex", {"instances": instances})


def test_bytes_of_images_are_counted_over_a_whole_body(serve: Serve, images: ImageServer) -> None:
    with serve(max_image_bytes=len(RED) + 5).client() as http:
        red, blue = image(data_url(RED)), image(data_url(BLUE))
        answered(http, CHAT, chat(red, red))  # equal ones count once
        for more in (blue, image(images.url("/blue.png"))):
            told = refused(http, CHAT, chat(red, more))
            assert told.startswith(
                "`messages[0].content[1].image_url.url`: the images of a request must have at most 17 bytes "
                "together (`max_image_bytes`). Given: "
            )


def test_a_body_may_be_larger_for_its_images_and_for_nothing_else(serve: Serve) -> None:
    limits = {"payload_limit": 2_000, "image_payload_limit": 10_000}
    large = data_url(RED + bytes(3_000))
    with serve(**limits).client() as http:
        answered(http, CHAT, chat(image(large)))
        answered(http, CHAT, chat({"type": "image_url", "image_url": large}))
        answered(http, GENERATE, prompt(f"![]({large})What is it?"))
        answered(http, COMPLETIONS, {"prompt": [f"![]({large})What is it?"]})
        answered(http, "/v2/models/m/infer", {"inputs": [{"data": [f"![]({large})What is it?"]}]})
        answered(http, "/chat_tokenize", {"messages": chat(image(large))["messages"]})
        too_large = "Failed to buffer the request body: length limit exceeded: it must have <= {} bytes"
        for path, body in (
            (CHAT, chat(image(large), image(large), image(large))),
            (CHAT, chat(text("x" * 2_000), image(large))),
            (CHAT, chat(text(f"![]({large})"))),  # a text there
            (GENERATE, prompt("x" * 3_000)),
            (CHAT, {**chat(text("Hi")), "chat_template_kwargs": {"image_url": large}}),
            (CHAT, {**chat(text("Hi")), "tools": [{"type": "function", "image_url": large}]}),
            ("/v1/responses", {"input": "Hi", "metadata": {"prompt": f"![]({large})"}}),
            ("/tokenize", {"inputs": f"![]({large})"}),
        ):
            limit = 10_000 if len(json.dumps(body)) > 10_000 else 2_000
            assert refused(http, path, body, 413).startswith(too_large.format(limit))
    with serve(payload_limit=2_000).client() as http:
        answered(http, CHAT, chat(image(large)))
    service = make_service(payload_limit=2_000)
    with live_server(service) as blind, blind.client() as http:
        assert refused(http, CHAT, chat(image(large)), 413).startswith(too_large.format(2_000))


def test_a_large_body_for_a_model_that_is_not_known_yet_is_told_to_come_later() -> None:
    large = chat(image(data_url(RED + bytes(3_000))))
    with loading(payload_limit=2_000) as http:
        assert http.post(CHAT, json=large).status_code == 503


def test_a_body_in_chunks_may_be_as_large(serve: Serve) -> None:
    live = serve(payload_limit=2_000, image_payload_limit=10_000)
    body = json.dumps(chat(image(data_url(RED + bytes(3_000))))).encode()
    pieces = [body[at : at + 1_000] for at in range(0, len(body), 1_000)]
    with live.client(headers={"content-type": "application/json"}) as http:
        assert http.post(CHAT, content=iter(pieces)).status_code == 200
        assert http.post(CHAT, content=iter([*pieces, b" " * 10_000])).status_code == 413
    assert live.service.image_memory.held == 0


def test_what_all_requests_hold_is_bounded(serve: Serve, images: ImageServer) -> None:
    live = serve(payload_limit=2_000, max_image_memory=5_000)
    large = chat(image(data_url(RED + bytes(3_000))))
    with live.client() as http:
        with live.service.image_memory.hold(3_000):
            for body in (large, chat(image(images.url("/large.png")))):
                response = http.post(CHAT, json=body)
                assert response.status_code == 429
                assert int(response.headers["retry-after"]) >= 1
                assert "(`max_image_memory`)" in message_of(error_of(response))
        answered(http, CHAT, large)
    assert live.service.image_memory.held == 0


def test_what_an_image_held_is_given_back_however_its_request_ends(serve: Serve, images: ImageServer) -> None:
    live = serve()
    with live.client() as http:
        for body in (
            chat(image(images.url("/red.png"))),
            chat(image(images.url("/red.png")), stream=True),
            chat(image(images.url("/red.png")), image(images.url("/nothing"))),
        ):
            http.post(CHAT, json=body).read()
    assert live.service.image_memory.held == 0


def test_fetching_takes_a_limited_time(serve: Serve, images: ImageServer) -> None:
    images.broken_off.clear()
    with serve(image_fetch_timeout=2).client() as http:  # of which the first look at certificates is a part
        told = refused(http, CHAT, chat(image(images.url("/drip.png"))))
    assert told == (
        f"{WHERE}Could not fetch image: it takes longer than 2 s (`image_fetch_timeout`): "
        "send the image itself, as data:image/png;base64,..."
    )
    assert images.broken_off.wait(20)


def test_a_client_that_leaves_ends_the_fetching(serve: Serve, images: ImageServer) -> None:
    images.asked.clear()
    images.broken_off.clear()
    live = serve()
    body = json.dumps(chat(image(images.url("/drip.png")))).encode()
    with connected(live) as sock:
        sock.sendall(head("POST", CHAT, length=len(body)) + body)
        wait_until(lambda: images.asked["/drip.png"], "the image was never asked for")
    assert images.broken_off.wait(20)
    with live.client() as http:  # the one place is free again
        answered(http, CHAT, chat(image(data_url(RED))))
    assert live.service.image_memory.held == 0


def test_nothing_is_fetched_for_whom_there_is_no_place(serve: Serve, images: ImageServer) -> None:
    images.asked.clear()
    live = serve(max_concurrent_requests=1)
    with live.service.engine.admit(), live.client() as http:
        response = http.post(CHAT, json=chat(image(images.url("/red.png"))))
    assert response.status_code == 429
    assert images.asked == {}
