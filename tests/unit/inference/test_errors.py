from __future__ import annotations

from inference.errors import ContextExceeded, InvalidInput, Member


def test_a_message_is_made_of_words_and_the_members_among_them() -> None:
    error = InvalidInput("the ", Member("a[0].b"), " beside ", Member("c", "any C"), " is wrong")
    assert str(error) == "the `a[0].b` beside any C is wrong"
    assert error.member == Member("a[0].b")


def test_what_only_looks_like_a_member_is_a_word() -> None:
    error = InvalidInput("`stop` is quoted from what was sent")
    assert (str(error), error.member) == ("`stop` is quoted from what was sent", None)


def test_a_member_that_is_only_named_is_not_what_is_wrong() -> None:
    hint = Member("messages", only_named=True)
    assert InvalidInput("send shorter ", hint).member is None
    assert InvalidInput("beside ", hint, " is ", Member("tools")).member == Member("tools")


def test_numbers_beside_the_message_are_no_words_of_it() -> None:
    error = ContextExceeded(Member("inputs"), " are too long", limit=8, given=9)
    assert (str(error), error.prompt_limit) == ("`inputs` are too long", 8)
