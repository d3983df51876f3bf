"""What a worker is told when it starts."""

from __future__ import annotations

import pytest

from handlers.settings import Settings
from handlers.worker import Post


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(api_key="s3cret", cors_allow_origin=("a", "b"), log_colorize=True, watermark_gamma=0.25),
    ],
)
def test_all_that_it_is_told_arrives(settings: Settings) -> None:
    post = Post(number=1, workers=2, engine="/run/engine", listening=3, places=4, board=5, settings=settings)
    line = post.encode()
    assert line.count(b"\n") == 1
    assert Post.decode(line) == post
    assert post.descriptors == (3, 4, 5)
