"""What can go wrong, as the callers of the engine see it.

InferenceError
├── InvalidInput          the request can't be served as it is: the caller's to mend
│   ├── ContextExceeded   it is longer than the model can read
│   ├── GrammarRefused    its grammar is invalid, unsupported or too much work
│   └── InvalidImage      an image of it can't be read
├── ToolRefused           its tools or its choice of one can't be served: the caller's to mend
├── TemplateFailed        the chat template is missing or refused the messages
├── Overloaded            no room now; `retry_after` says when to come back
│   ├── OwnerOverloaded   as many requests of this owner as allowed are in flight
│   ├── TextsOverloaded   as much text as allowed waits to be read
│   └── ImagesOverloaded  as many bytes of images as allowed are held
├── NotReady              loading or draining; `retry_after` says when to come back
├── GenerationFailed      the engine failed while it worked on this request
├── IncompleteGeneration  the engine ended the request without a last token
├── AdapterRefused        an adapter can't be loaded or unloaded while the model runs
└── ModelUnavailable      the model can't be loaded: start-up ends with this message
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inference.images import Image


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a request, as a message names it.

    Where TGI has a name for it, `path` is that one: what else it is called is known to the dialects.
    """

    path: str  # "max_new_tokens", "tools[1].function.parameters"
    shown: str = ""  # in messages, if it isn't the path in backticks
    only_named: bool = False  # it isn't what is wrong, or not by itself

    def __str__(self) -> str:
        return self.shown or f"`{self.path}`"


class InferenceError(Exception):
    """Base of all; `str(error)` is written for the person who sent the request.

    It is made of words, among which members of the request stand as such. The first is the one that is wrong.
    """

    within: tuple[str | int, ...] = ()  # the path to the request, where a body has several

    def __init__(self, *words: str | Member) -> None:
        super().__init__(*words)

    @property
    def member(self) -> Member | None:
        """Return the member that the error is about; None for none."""
        members = (word for word in self.args if isinstance(word, Member))
        return next((member for member in members if not member.only_named), None)

    def __str__(self) -> str:
        return "".join(map(str, self.args))


class InvalidInput(InferenceError):
    """The request's input is out of its limits; the message names field, limit and value."""


class ContextExceeded(InvalidInput):
    """The prompt, or the prompt with what is to be generated, has more tokens than fit; `limit` do.

    With `wanted`, the prompt alone would fit.
    """

    def __init__(
        self, *words: str | Member, limit: int, given: int, prompt_limit: int | None = None, wanted: int = 0
    ) -> None:
        super().__init__(*words)
        self.limit = limit  # tokens
        self.given = given  # the prompt's tokens, as many at least
        self.prompt_limit = limit if prompt_limit is None else prompt_limit  # of a prompt alone
        self.wanted = wanted  # tokens to generate; 0 where the prompt alone is too long


class GrammarRefused(InvalidInput):
    """The grammar is invalid, unsupported or past a limit; the message names member, pointer and limit."""


class InvalidImage(InvalidInput):
    """An image can't be read; the message, which begins with TGI's words, says why."""

    def __init__(self, why: str, number: int = 0, image: Image | None = None) -> None:
        super().__init__(f"invalid image: {why}")
        self.why = why
        self.number = number  # which of the request's images it is, from 1 on; 0: not known here
        self.image = image  # the very one, where the request is at hand


class ToolRefused(InferenceError):
    """A tool, or the choice of one, can't be served; the message says which and why."""


class TemplateFailed(InferenceError):
    """The chat template is missing, or raised; the message says which and where."""


class Overloaded(InferenceError):
    """As many requests as allowed are in flight."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("Model is overloaded")
        self.retry_after = retry_after  # seconds


class OwnerOverloaded(Overloaded):
    """As many requests as one owner may have are in flight."""

    def __init__(self, limit: int, retry_after: float, share: int) -> None:
        """`share` is what this replica has of the limit."""
        super().__init__(retry_after)
        part = "" if share == limit else f"this replica's share, {share}, of "
        self.args = (
            f"As many requests of this caller as {part}`max_concurrent_requests_per_key`, which is {limit}, "
            "are in flight: come back when some have ended",
        )


class TextsOverloaded(Overloaded):
    """As much text as allowed waits to be read."""

    def __init__(self, size: int, waiting: int, most: int, retry_after: float, what: str) -> None:
        super().__init__(retry_after)
        self.args = (
            f"{waiting:,} {what} wait to be read, and at most {most:,} may. "
            f"Given: {size:,} more: send them again later, or in smaller parts",
        )


class ImagesOverloaded(Overloaded):
    """As many bytes of images as allowed are held for requests in flight."""

    def __init__(self, size: int, held: int, most: int, retry_after: float) -> None:
        super().__init__(retry_after)
        self.args = (
            f"{held:,} bytes of images are held for requests in flight, and at most {most:,} may "
            f"(`max_image_memory`). Given: {size:,} more: send them again later, or smaller ones",
        )


class NotReady(InferenceError):
    """The engine is loading its model, or no longer takes requests."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds


class GenerationFailed(InferenceError):
    """The engine failed on this request after it was accepted."""


class IncompleteGeneration(InferenceError):
    """The request ended without its last token."""


class ModelUnavailable(InferenceError):
    """The model can't be loaded; the message says what to do next."""


class AdapterRefused(InferenceError):
    """An adapter can't be loaded or unloaded while the model runs; `missing`: there is none to be."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing
