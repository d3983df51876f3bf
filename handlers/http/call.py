"""What an operation is called with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

if TYPE_CHECKING:
    from handlers.service import Service


@dataclass(frozen=True, slots=True)
class Call:
    """One request that was routed, authorised and found to fit the contract."""

    body: Any  # the JSON body, parsed and valid; None where the operation takes none
    path: Mapping[str, str]  # path parameters by name
    received: float  # time.monotonic() at which the request came in
    owner: str = ""  # whose it is: a digest of the bearer token that came with it, "" without one


Operation = Callable[["Service", Call], Awaitable[Response]]
