"""What an operation is called with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from starlette.responses import Response

from handlers.http.aside import AT_ONCE, Aside
from handlers.images.memory import Hold

if TYPE_CHECKING:
    from handlers.service import Service

Body = TypeVar("Body")
Body_co = TypeVar("Body_co", covariant=True)
Reply = TypeVar("Reply", bound=Response)


@dataclass(frozen=True, slots=True)
class Call(Generic[Body_co]):
    """One request that was routed, authorised and found to fit the contract."""

    body: Body_co  # the JSON body, parsed and valid; None where the operation takes none
    path: Mapping[str, str]  # path parameters by name
    received: float  # time.monotonic() at which the request came in
    owner: str = ""  # whose it is: a digest of the bearer token that came with it, "" without one
    aside: Aside = AT_ONCE  # runs what is made of the body: a large one's on a thread
    speaks_openai: bool = False  # whether a client made for OpenAI's API sent it
    hold: Hold | None = None  # what is held for it of images; None where there can't be any


Operation: TypeAlias = Callable[["Service", Call[Body]], Awaitable[Reply]]
