"""Images in bodies: found in Markdown and decoded, in one look at each character."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.wire.images import ImageUrl, decoded, image_characters, split_markdown, to_sighted
from inference.errors import InvalidInput, Member
from inference.types import VisionInfo

VISION = VisionInfo(token="<i>", placeholder="[<i>]")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", [""]),
        ("a", ["a"]),
        ("![](u)", ["", "u", ""]),
        ("a![](u)b![](v)", ["a", "u", "b", "v", ""]),
        ("![]()", ["", "", ""]),
        ("![](a![](b)", ["", "a![](b", ""]),
        ("![](u", ["![](u"]),
        ("a![](u)![](", ["a", "u", "![]("]),
        ("![alt](u) [](u) ![] (u)", ["![alt](u) [](u) ![] (u)"]),
    ],
)
def test_markdown_is_split_as_tgi_does(text: str, pieces: list[str]) -> None:
    assert split_markdown(text) == pieces


@given(st.lists(st.sampled_from(["![](", ")", "a", "![](x)", "!", "[](", "\n"]), max_size=30).map("".join))
def test_nothing_of_a_text_is_lost_by_splitting(text: str) -> None:
    pieces = split_markdown(text)
    assert len(pieces) % 2 == 1
    whole = pieces[0] + "".join(
        f"![]({url}){after}" for url, after in zip(pieces[1::2], pieces[2::2], strict=True)
    )
    assert whole == text
    sighted = to_sighted(text, VISION, "inputs")
    assert sighted.text.count(VISION.token) == len(sighted.images) == len(pieces) // 2


def test_images_of_a_text_become_placeholders_with_numbers() -> None:
    sighted = to_sighted("a![](u)b![](v)", VISION, "prompt[1]")
    assert sighted.text == "a[<i>]b[<i>]"
    first, second = (Member("prompt[1]", f"`prompt[1]`, image {at}") for at in (1, 2))
    assert sighted.images == (ImageUrl(first, "u"), ImageUrl(second, "v"))


@pytest.mark.parametrize("vision", [None, VisionInfo(token="", placeholder="", reason="it can't")])
def test_a_text_stays_one_for_the_blind(vision: VisionInfo | None) -> None:
    sighted = to_sighted("a![](u)b", vision, "inputs")
    assert (sighted.text, sighted.images) == ("a![](u)b", ())


@given(st.binary(max_size=100))
def test_what_is_sent_whole_is_decoded(data: bytes) -> None:
    for head in ("data:image/png;base64", "DATA:IMAGE/PNG;BASE64", "data:;base64", "data:image/x;a=b;base64"):
        assert decoded(ImageUrl(Member("x"), f"{head},{base64.b64encode(data).decode()}")) == data


@pytest.mark.parametrize(
    "content", ["YQ", "YQ=", "Y", "YQ==YQ==", "YQ==\n", " YQ==", "Y-8_", "YQ%3D%3D", "YQ===="]
)
def test_what_is_not_strictly_base64_is_refused(content: str) -> None:
    with pytest.raises(InvalidInput, match=r"^`x`: base64 encoding is invalid: "):
        decoded(ImageUrl(Member("x"), f"data:image/png;base64,{content}"))


def test_only_what_is_an_images_counts_as_one() -> None:
    url = "data:image/png;base64,YWJj"
    size = len(url)
    assert (
        image_characters({"messages": [{"content": [{"image_url": {"url": url}}, {"image_url": url}]}]})
        == 2 * size
    )
    assert image_characters({"inputs": f"a![]({url})![]({url})", "prompt": [f"![]({url})"]}) == 3 * size
    assert (
        image_characters({"inputs": [{"data": [f"![]({url})"]}], "instances": [{"inputs": f"![]({url})"}]})
        == 2 * size
    )
    others = [
        url,
        {"content": f"![]({url})"},
        {"text": url},
        {"inputs": url},
        {"image_url": "https://x/"},
        None,
        1,
    ]
    assert image_characters(others) == 0
