"""One line in the log for each request, once it has ended."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from handlers.account import Account

if TYPE_CHECKING:
    from starlette.types import Scope

    from inference.types import Finish, Request

access = logging.getLogger("parley.access")


class AccessLog:
    """Logs method, path, status, sizes, times and what was generated; implements `Observer`.

    The path comes without its query and percent-encoded, so that it can't forge a line. What was asked and
    answered is told only if that is asked for, as are errors' messages, which quote what was asked.
    """

    def __init__(self, *, prompts: bool = False) -> None:
        self._prompts = prompts

    def began(self, scope: Scope, account: Account) -> None:
        """Say nothing yet."""

    def ended(self, scope: Scope, account: Account) -> None:
        """Log the request."""
        if account.declined or not access.isEnabledFor(logging.INFO):
            return
        path = scope.get("raw_path") or scope["path"].encode()
        access.info("%s %s", scope["method"], path.decode("latin-1"), extra=self._fields(account))

    def _fields(self, account: Account) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "status": account.status,
            "seconds": round(time.monotonic() - account.received, 6),
            "request_id": account.request_id,
            "operation": account.operation,
            "received_bytes": account.received_bytes,
            "sent_bytes": account.sent_bytes,
        }
        told = {"key": account.owner, "error_type": account.error_type, "trace_id": account.trace_id}
        if self._prompts:
            told["error"] = account.error
        fields |= {name: value for name, value in told.items() if value}
        unfinished = account.unfinished()
        requests = [request for request, _ in account.generations] + [each.request for each in unfinished]
        names = {request.adapter: None for request in requests if request.adapter}
        fields |= {"adapter": ",".join(names)} if names else {}
        if account.generations:
            finishes = [finish for _, finish in account.generations]
            fields |= generated(finishes, account.of_each_prompt())
            if self._prompts:
                fields |= texts(account.generations)
        if unfinished:  # it failed, or its client left: what had been made by then
            fields["prompt_tokens"] = account.prompt_tokens()
            made = sum(generation.generated_tokens for generation in unfinished)
            fields["generated_tokens"] = fields.get("generated_tokens", 0) + made
        return fields


def generated(finishes: list[Finish], prompts: list[Finish] | None = None) -> dict[str, Any]:
    """Return TGI's measures of a request: what all generations read and made, and the first one's times.

    `prompts` has one of each prompt's finishes; without it, each finish has a prompt of its own.
    """
    prompts = finishes if prompts is None else prompts
    first = finishes[0]
    times, count = first.timings, first.generated_tokens
    inference = times.finished - times.started
    seconds = {
        "total_time": times.finished - times.submitted,
        "validation_time": times.queued - times.submitted,
        "queue_time": times.started - times.queued,
        "inference_time": inference,
        "time_per_token": inference / max(count, 1),
        "time_to_first_token": times.first_token - times.submitted,
    }
    return {
        "prompt_tokens": sum(finish.prompt_tokens for finish in prompts),
        "cached_tokens": sum(finish.cached_tokens for finish in prompts),
        "generated_tokens": sum(finish.generated_tokens for finish in finishes),
        "finish_reason": ",".join(finish.reason for finish in finishes),
        **({} if first.seed is None else {"seed": first.seed}),
        **{name: round(value, 6) for name, value in seconds.items()},
    }


def texts(generations: list[tuple[Request, Finish]]) -> dict[str, Any]:
    """Return what was asked and what was answered."""
    prompts = [request.prompt for request, _ in generations]
    return {
        "prompt": prompts[0] if len(set(prompts)) == 1 else prompts,  # in the order of the texts
        "generated_text": [finish.text for _, finish in generations],
    }
