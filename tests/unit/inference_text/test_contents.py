"""Images in chat templates: those that go through parts, and those that know texts alone."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import InvalidInput, TemplateFailed
from inference.text.chat_template import ChatTemplate
from inference.text.contents import IMAGE_PART, ContentHabits, Images, Marks
from inference.text.stand_in import CHATML
from inference.types import Messages, VisionInfo

IMAGE = dict(IMAGE_PART)
# As transformers' own templates of models that see do it
ONLY_PARTS = (
    "{% for message in messages %}{{ message['role'] }}:"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|see|>{% else %}{{ part['text'] | trim }}{% endif %}"
    "{% endfor %};{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
BOTH = (
    "{% for message in messages %}{{ message.role }}:"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'image' or 'image' in part %}<begin><|see|><end>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %};{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
IMAGES_FIRST = (  # of each message, as older templates have it
    "{% for message in messages %}{{ message.role }}:"
    "{% for part in message.content | selectattr('type', 'equalto', 'image') %}<|see|>\n{% endfor %}"
    "{% for part in message.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}{% endfor %};"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
TEXT_PARTS_ALONE = (
    "{% for message in messages %}{{ message.role }}:"
    "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %};"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
DUMPING = "{{ messages | tojson }}"
VISION = VisionInfo(token="<|see|>", placeholder="[<|see|>]")
TWO = (
    {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE, {"type": "text", "text": "b"}, IMAGE]},
)


def rendered(source: str, messages: Messages, vision: VisionInfo | None = VISION, **options: Any) -> str:
    images = Images(vision=vision)
    chat = images.marks.write(messages)
    return ChatTemplate({"default": source}, {}).render(chat, images=images, **options)


@pytest.mark.parametrize(
    ("source", "habits"),
    [
        (ONLY_PARTS, ContentHabits(texts=False, images=True)),
        (BOTH, ContentHabits(texts=True, images=True)),
        (IMAGES_FIRST, ContentHabits(texts=False, images=True)),
        (TEXT_PARTS_ALONE, ContentHabits(texts=False, images=False)),
        (CHATML, ContentHabits(texts=True, images=False)),
        (DUMPING, ContentHabits(texts=True, images=False)),
        ("no message", ContentHabits(texts=True, images=False)),
    ],
)
def test_what_a_template_takes_is_found_by_rendering(source: str, habits: ContentHabits) -> None:
    compiled = ChatTemplate({"default": source}, {})._template(has_tools=False)
    assert compiled.contents == habits


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (ONLY_PARTS, "user:a<|see|>b<|see|>;assistant:"),
        (BOTH, "user:a<begin><|see|><end>b<begin><|see|><end>;assistant:"),
        (IMAGES_FIRST, "user:<|see|>\n<|see|>\nab;assistant:"),
        (TEXT_PARTS_ALONE, "user:a[<|see|>]b[<|see|>];assistant:"),
        (CHATML, "<|im_start|>user\na[<|see|>]b[<|see|>]<|im_end|>\n<|im_start|>assistant\n"),
    ],
)
def test_images_stand_where_the_template_or_the_model_has_them(source: str, expected: str) -> None:
    assert rendered(source, TWO) == expected


@pytest.mark.parametrize("source", [ONLY_PARTS, BOTH, IMAGES_FIRST, TEXT_PARTS_ALONE])
def test_texts_alone_are_shown_by_any_of_them(source: str) -> None:
    chat = [{"role": "system", "content": "be"}, {"role": "user", "content": "a"}]
    for vision in (VISION, None):
        assert rendered(source, chat, vision) == "system:be;user:a;assistant:"


@pytest.mark.parametrize("source", [ONLY_PARTS, BOTH, CHATML])
def test_an_answer_that_is_begun_goes_on_after_images_of_earlier_turns(source: str) -> None:
    chat: list[Any] = [*TWO, {"role": "assistant", "content": "It is"}]
    assert rendered(source, chat).endswith("It is")
    assert rendered(source, chat).count(VISION.token) == 2
    in_parts: list[Any] = [*TWO, {"role": "assistant", "content": [IMAGE, {"type": "text", "text": "It is"}]}]
    assert rendered(source, in_parts).endswith("It is")


@pytest.mark.parametrize("source", [ONLY_PARTS, CHATML])
def test_the_mark_in_a_text_is_refused_with_images_and_without(source: str) -> None:
    told: Any = {"role": "user", "content": "a <|see|> b"}
    for chat, message in (([told], "1 times `<|see|>`"), ([told, *TWO], "3 times `<|see|>`")):
        with pytest.raises(InvalidInput, match="by which this model marks an image") as refusal:
            rendered(source, chat)
        assert message in str(refusal.value)
    assert "a <|see|> b" in rendered(source, [told], None)  # for the blind it is a text


def test_a_template_that_leaves_images_out_is_told_apart() -> None:
    silent = "{% for message in messages %}{{ message.role }};{% endfor %}"
    with pytest.raises(TemplateFailed, match="leaves out images: it shows 0 of 2"):
        rendered(silent, TWO)


def test_no_client_can_write_a_mark() -> None:
    assert Marks().write(TWO)[0]["content"] != Marks().write(TWO)[0]["content"]


def test_images_that_a_template_would_put_in_another_order_are_refused() -> None:
    marks = Marks()
    first, second = marks.write([{"role": "tool", "content": [IMAGE]}, {"role": "tool", "content": [IMAGE]}])
    marks.check_order([first, second])
    with pytest.raises(InvalidInput, match="send the results in the order of the calls"):
        marks.check_order([second, first])


def test_tools_are_known_to_a_template_that_takes_parts_alone() -> None:
    source = "{% if tools %}{{ tools | tojson }}{% endif %}" + ONLY_PARTS
    template = ChatTemplate({"default": source}, {})
    assert template.habits(has_tools=True).shows_tools
