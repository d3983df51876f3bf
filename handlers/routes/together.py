"""Several generations for one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from inference.errors import InvalidInput, TemplateFailed, ToolRefused

T = TypeVar("T")
CALLERS_FAULT = (InvalidInput, TemplateFailed, ToolRefused)


async def together(place: str, jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return what `side_by_side` does, for jobs that are elements of the request's member `place`.

    If there are several and the caller has to mend something, the message begins with the one that is meant,
    as in `instances[1]`.
    """
    if len(jobs) == 1:
        return [await jobs[0]]
    return await side_by_side([_named(f"{place}[{at}]", job) for at, job in enumerate(jobs)])


async def side_by_side(jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return what the jobs give, in order; the first that fails ends the others and raises its error."""
    if len(jobs) == 1:  # the usual case, without a task
        return [await jobs[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in jobs]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _named(place: str, job: Coroutine[Any, Any, T]) -> T:
    try:
        return await job
    except CALLERS_FAULT as error:
        error.args = (f"{place}: ", *error.args)
        raise
