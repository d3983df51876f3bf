"""What is known of one request besides its answer: for its line in the log, the metrics and its trace."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import Scope

    from inference.frontend.client import Generation
    from inference.types import Finish, Request


DECLINABLE = "parley.declinable"  # an extension of the scope: see `Account.declinable`
RECEIVED = "parley.received"  # the same: how many bytes of its body came to who passes the request on
# error types that mean: another server may be able to; of a caller's rate each has its share
DECLINING = (429, 503, 529)
DECLINED = ("overloaded", "rate_limited", "not_ready", "healthcheck")


@dataclass(slots=True)
class Account:
    """Kept while a request is answered, by whoever learns something; read when it has ended."""

    request_id: str
    received: float  # time.monotonic()
    operation: str = ""  # its operationId, once routed
    owner: str = ""  # a digest of its key; "" without one
    status: int = 0  # set with the first message of the answer
    error_type: str = ""  # of the answer, or of the event that ended a stream
    error: str = ""  # what its sender was told of that
    received_bytes: int = 0  # of the body
    sent_bytes: int = 0  # of the answer's body
    trace_id: str = ""  # of the trace that it is part of
    span: object = None  # of that trace; whoever traces keeps it here
    brings: bool = False  # it comes with a body
    asks: bool = False  # it counts as one that asks for generation, or for a chat's tokens
    begun: list[Generation] = field(default_factory=list)  # that the engine took
    firsts: dict[str, str] = field(default_factory=dict)  # id of a Request: of the first with its prompt
    generations: list[tuple[Request, Finish]] = field(default_factory=list)  # that came to their end
    declinable: bool = False  # another server is asked if this one declines, and it is that one's then
    declined: bool = False  # so it went: nobody is told of it here
    uncounted: list[Callable[[], None]] = field(default_factory=list)  # what happened while that was open

    def count(self, told: Callable[[], None]) -> None:
        """Have something counted that is the request's: as soon as it is clear whose the request is."""
        if self.declinable:
            self.uncounted.append(told)
        else:
            told()

    def decide(self) -> None:
        """Find out whether this server declines, now that its answer begins, or that there is none."""
        if not self.declinable:
            return
        self.declinable = False
        self.declined = self.status in DECLINING and self.error_type in DECLINED
        for told in () if self.declined else self.uncounted:
            told()
        self.uncounted.clear()

    def unfinished(self) -> list[Generation]:
        """Return what was begun and didn't come to its end: it failed, or its client left."""
        finished = {request.id for request, _ in self.generations}
        return [generation for generation in self.begun if generation.request.id not in finished]

    def prompt_tokens(self) -> int:
        """Return how many tokens all its prompts have; each counts once, however many texts follow it."""
        lengths = {
            self.firsts.get(generation.request.id, generation.request.id): generation.prompt_tokens
            for generation in self.begun
        }
        return sum(lengths.values())

    def of_each_prompt(self) -> list[Finish]:
        """Return one generation of each prompt: that of its first request, if it came to its end."""
        chosen: dict[str, Finish] = {}
        for request, finish in self.generations:
            first = self.firsts.get(request.id, request.id)
            if request.id == first or first not in chosen:
                chosen[first] = finish
        return list(chosen.values())


class Observer(Protocol):
    """Is told of each HTTP request, on the event loop."""

    def began(self, scope: Scope, account: Account) -> None:
        """Hear of a request whose head has come."""

    def ended(self, scope: Scope, account: Account) -> None:
        """Hear that nothing more is sent; called once for each that began."""


# set by the outermost layer; tasks that a request starts inherit it
_ACCOUNT: ContextVar[Account | None] = ContextVar("account", default=None)


def open_account(account: Account) -> None:
    """Make this the account of everything that the present task, and those it starts, do."""
    _ACCOUNT.set(account)


def current_account() -> Account | None:
    """Return the account of the request that is being answered here; None outside of any."""
    return _ACCOUNT.get()


def note_prompt(requests: Sequence[Request]) -> None:
    """Note in the present account, if there is one, that these continue one prompt, which counts once."""
    account = _ACCOUNT.get()
    if account is not None:
        account.firsts |= {request.id: requests[0].id for request in requests}


def note_begun(generation: Generation) -> None:
    """Note in the present account, if there is one, that the engine took a request."""
    account = _ACCOUNT.get()
    if account is not None:
        account.begun.append(generation)


def note_generation(request: Request, finish: Finish) -> None:
    """Note in the present account, if there is one, that a generation came to its end."""
    account = _ACCOUNT.get()
    if account is not None:
        account.generations.append((request, finish))
