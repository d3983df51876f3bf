"""TGI's response headers: what the answer took."""

from __future__ import annotations

from collections.abc import Sequence

from handlers.wire.types import Usage
from inference.types import Finish

Headers = dict[str, str]


def stream_headers(compute_type: str, prompts: Sequence[str]) -> Headers:
    """Return what is known before the first token."""
    return {
        "x-compute-type": compute_type,
        "x-compute-characters": str(sum(len(prompt) for prompt in prompts)),
    }


def answer_headers(compute_type: str, prompt: str, finish: Finish, received: float) -> Headers:
    """Return the headers of an answer to one prompt; `received` is the request's time.monotonic()."""
    total = finish.timings.finished - received
    headers = stream_headers(compute_type, [prompt])
    headers.update((name, str(number)) for name, number in _numbers(finish, received).items())
    headers["x-compute-time"] = f"{total:.9f}"
    return headers


def batch_headers(
    compute_type: str,
    prompts: Sequence[str],
    finishes: Sequence[Finish],
    received: float,
    *,
    counts: Usage,
) -> Headers:
    """Return the headers of an answer to several prompts: sums, and as in TGI no x-compute-time.

    `counts` is the answer's usage, where a prompt counts once however many texts follow it.
    """
    headers = stream_headers(compute_type, prompts)
    each = [_numbers(finish, received) for finish in finishes]
    headers.update((name, str(sum(numbers[name] for numbers in each))) for name in each[0])
    headers["x-prompt-tokens"] = str(counts["prompt_tokens"])
    headers["x-generated-tokens"] = str(counts["completion_tokens"])
    return headers


def _numbers(finish: Finish, received: float) -> dict[str, int]:
    """Return what is counted and measured of one generation, times in milliseconds."""
    times = finish.timings
    inference = times.finished - times.started
    return {
        "x-total-time": _milliseconds(times.finished - received),
        "x-validation-time": _milliseconds(times.queued - received),
        "x-queue-time": _milliseconds(times.started - times.queued),
        "x-inference-time": _milliseconds(inference),
        "x-time-per-token": _milliseconds(inference / max(1, finish.generated_tokens)),
        "x-prompt-tokens": finish.prompt_tokens,
        "x-generated-tokens": finish.generated_tokens,
    }


def _milliseconds(seconds: float) -> int:
    return max(0, int(seconds * 1000))
