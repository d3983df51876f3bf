"""Whose request is whose, and what a step has to say to each: pure bookkeeping of both sides."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from msgspec import structs

from inference.ipc.framing import HEADER_BYTES, FrameFault, pack
from inference.ipc.messages import ENGINE_LIMIT, Batch, Changed, Edition, Failed, More, Seen
from inference.types import AdapterChanged, AdapterEdition, CoreFailure, CoreOutput, Frame, Looked

Owner = TypeVar("Owner", bound=Hashable)


class Routes(Generic[Owner]):
    """The engine's side: which attached process a request came from, and its number there.

    Used by the core's thread and the socket's at once; each operation on a dict is atomic.
    """

    def __init__(self) -> None:
        self._routes: dict[str, tuple[Owner, int]] = {}  # by the id that the core knows
        self._ids: dict[tuple[Owner, int], str] = {}
        self._new: set[str] = set()  # core's ids of those of whom nothing has been said yet
        self._early: set[str] = set()  # of those that come in two parts, of which one has come

    def add(self, owner: Owner, number: int, core_id: str, *, early: bool = False) -> None:
        """Take a request on; raise FrameFault if its sender has one of that number.

        It may have, once, if that was `early`: then this is the rest of it.
        """
        known = self._ids.get((owner, number))
        if known is not None and (early or known not in self._early):
            raise FrameFault(f"request number {number} is in use")
        (self._early.add if early else self._early.discard)(core_id)
        self._new.add(core_id)
        self._routes[core_id] = (owner, number)
        self._ids[owner, number] = core_id

    def remove(self, owner: Owner, number: int) -> str | None:
        """Forget a request; return the core's id of it, None if it has ended."""
        core_id = self._ids.pop((owner, number), None)
        if core_id is not None:
            self._routes.pop(core_id, None)
            self._new.discard(core_id)
            self._early.discard(core_id)
        return core_id

    def drop(self, owner: Owner) -> list[str]:
        """Forget all requests of a process; return the core's ids of them."""
        numbers = [number for each, number in list(self._ids) if each is owner]
        dropped = (self.remove(owner, number) for number in numbers)
        return [core_id for core_id in dropped if core_id is not None]

    def owner(self, core_id: str) -> Owner | None:
        """Return whose request it is; None if it has ended."""
        route = self._routes.get(core_id)
        return None if route is None else route[0]

    def split(self, frame: Frame) -> dict[Owner, Batch]:
        """Return what a step has to say to each process; requests that end are forgotten."""
        batches: dict[Owner, Batch] = {}
        for output in frame.outputs:
            route = self._routes.get(output.id)
            if route is None:  # aborted meanwhile
                continue
            owner, number = route
            batch = batches.get(owner)
            if batch is None:
                batch = batches[owner] = Batch()
            if isinstance(output, CoreFailure):
                batch.failures.append(Failed(number, output.message, output.own))
                self.remove(owner, number)
                continue
            first = output.id in self._new
            if first:
                self._new.discard(output.id)
            put(batch, number, output, first=first)
            if output.finish is not None:
                self.remove(owner, number)
        for looked in frame.looked:
            route = self._routes.get(looked.id)
            if route is not None:
                owner, number = route
                seen = Seen(
                    number, looked.images, looked.message, looked.invalid, looked.which, looked.member
                )
                batches.setdefault(owner, Batch()).looked.append(seen)
                if looked.message:
                    self.remove(owner, number)
        return batches

    def __len__(self) -> int:
        return len(self._routes)


def put(batch: Batch, number: int, output: CoreOutput, *, first: bool = False) -> None:
    """Add a token to a batch, and what else there is to say of it; of a `first` token all is said."""
    if first or output.finish is not None or output.top or output.prompt_logprobs is not None:
        batch.more.append(
            More(
                len(batch.numbers),
                output.top,
                output.finish,
                output.started,
                output.cached_tokens,
                output.prompt_logprobs,
                output.prompt_top,
            )
        )
    batch.numbers.append(number)
    batch.tokens.append(output.token_id)
    batch.logprobs.append(output.logprob)


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """Return a batch as two, of half of its tokens each; what isn't said of tokens comes with the second."""
    half = len(batch.numbers) // 2
    first = Batch(
        batch.numbers[:half],
        batch.tokens[:half],
        batch.logprobs[:half],
        [each for each in batch.more if each.at < half],
    )
    later = (each for each in batch.more if each.at >= half)
    second = Batch(
        batch.numbers[half:],
        batch.tokens[half:],
        batch.logprobs[half:],
        [structs.replace(each, at=each.at - half) for each in later],
        batch.failures,
        batch.looked,
        batch.stats,
    )
    return first, second


def frames(batch: Batch, limit: int = ENGINE_LIMIT) -> Iterator[bytes]:
    """Yield a batch as frames that its reader takes, of at most `limit` bytes: nearly always one."""
    data = pack(batch)
    if len(data) - HEADER_BYTES <= limit or len(batch.numbers) < 2:
        yield data
        return
    for half in halves(batch):
        yield from frames(half, limit)


class Numbers:
    """The API process's side: the numbers of its requests, which are never used twice."""

    def __init__(self) -> None:
        self._next = 0
        self._ids: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def add(self, request_id: str) -> int:
        """Return the number of a request, a new one unless it was added before."""
        if request_id in self._numbers:
            return self._numbers[request_id]
        number = self._next
        self._next += 1
        self._ids[number] = request_id
        self._numbers[request_id] = number
        return number

    def remove(self, request_id: str) -> int | None:
        """Forget a request; return its number, None if it has ended."""
        number = self._numbers.pop(request_id, None)
        if number is not None:
            del self._ids[number]
        return number

    def drop(self) -> tuple[str, ...]:
        """Forget all requests and return their ids."""
        dropped = tuple(self._numbers)
        self._ids.clear()
        self._numbers.clear()
        return dropped

    def frame(self, message: Batch | Edition | Changed) -> Frame:
        """Return what is said of the requests that are known, and of adapters; raise FrameFault.

        Requests that end are forgotten.
        """
        if isinstance(message, Edition):
            return Frame((), edition=AdapterEdition(message.number, message.adapters, {}))
        if isinstance(message, Changed):
            return Frame((), changed=tuple(self._changed(message)))
        return self._batch(message)

    def _changed(self, message: Changed) -> Iterator[AdapterChanged]:
        request_id = self._ids.get(message.number)
        if request_id is not None:
            self.remove(request_id)
            yield AdapterChanged(request_id, message.refusal, message.missing)

    def _batch(self, batch: Batch) -> Frame:
        outputs = [*self._outputs(batch), *self._failures(batch)]
        for output in outputs:
            if isinstance(output, CoreFailure) or output.finish is not None:
                self.remove(output.id)
        return Frame(tuple(outputs), batch.stats, tuple(self._looked(batch)))

    def _looked(self, batch: Batch) -> Iterator[Looked]:
        for each in batch.looked:
            request_id = self._ids.get(each.number)
            if request_id is not None:
                yield Looked(request_id, each.images, each.message, each.invalid, each.which, each.member)
                if each.message:
                    self.remove(request_id)

    def _outputs(self, batch: Batch) -> list[CoreOutput | CoreFailure]:
        if not len(batch.numbers) == len(batch.tokens) == len(batch.logprobs):
            raise FrameFault("the columns of a batch differ in length")
        ids, more = self._ids, {each.at: each for each in batch.more}
        rows = zip(batch.numbers, batch.tokens, batch.logprobs, strict=True)
        if not more:
            return [CoreOutput(ids[n], token, logprob) for n, token, logprob in rows if n in ids]
        return [
            _whole(ids[n], token, logprob, more.get(at))
            for at, (n, token, logprob) in enumerate(rows)
            if n in ids
        ]

    def _failures(self, batch: Batch) -> list[CoreOutput | CoreFailure]:
        return [
            CoreFailure(self._ids[each.number], each.message, each.own)
            for each in batch.failures
            if each.number in self._ids
        ]

    def __len__(self) -> int:
        return len(self._ids)


def _whole(request_id: str, token: int, logprob: float, more: More | None) -> CoreOutput:
    if more is None:
        return CoreOutput(request_id, token, logprob)
    return CoreOutput(
        request_id,
        token,
        logprob,
        more.top,
        more.finish,
        more.started,
        more.cached_tokens,
        more.prompt_logprobs,
        more.prompt_top,
    )
