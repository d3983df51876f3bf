"""Several generations for one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from inference.errors import InvalidInput, TemplateFailed, ToolRefused

T = TypeVar("T")
CALLERS_FAULT = (InvalidInput, TemplateFailed, ToolRefused)


async def together(place: str, jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return what the jobs give, in their order; they run side by side.

    The first that fails ends the others, and its error is raised. If there are several and the caller has to
    mend something, the message begins with the one that is meant, as in `instances[1]` for that `place`.
    """
    if len(jobs) == 1:
        return [await jobs[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_named(f"{place}[{at}]", job)) for at, job in enumerate(jobs)]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _named(place: str, job: Coroutine[Any, Any, T]) -> T:
    try:
        return await job
    except CALLERS_FAULT as error:
        raise type(error)(f"{place}: {error}") from error
