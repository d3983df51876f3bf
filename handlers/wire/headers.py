"""TGI's response headers: what the answer took."""

from __future__ import annotations

from collections.abc import Sequence

from inference.types import Finish

Headers = dict[str, str]


def stream_headers(compute_type: str, prompts: Sequence[str]) -> Headers:
    """Return what is known before the first token."""
    return {
        "x-compute-type": compute_type,
        "x-compute-characters": str(sum(len(prompt) for prompt in prompts)),
    }


def answer_headers(compute_type: str, prompt: str, finish: Finish) -> Headers:
    """Return the headers of an answer to one prompt."""
    total = finish.timings.finished - finish.timings.submitted
    return batch_headers(compute_type, [prompt], [finish]) | {"x-compute-time": f"{total:.9f}"}


def batch_headers(compute_type: str, prompts: Sequence[str], finishes: Sequence[Finish]) -> Headers:
    """Return the headers of an answer to several prompts: sums, and as in TGI no x-compute-time."""
    times = [finish.timings for finish in finishes]
    milliseconds = {
        "x-total-time": sum(_milliseconds(time.submitted, time.finished) for time in times),
        "x-validation-time": sum(_milliseconds(time.submitted, time.queued) for time in times),
        "x-queue-time": sum(_milliseconds(time.queued, time.started) for time in times),
        "x-inference-time": sum(_milliseconds(time.started, time.finished) for time in times),
        "x-time-per-token": sum(_milliseconds_per_token(finish) for finish in finishes),
    }
    counts = {
        "x-prompt-tokens": sum(finish.prompt_tokens for finish in finishes),
        "x-generated-tokens": sum(finish.generated_tokens for finish in finishes),
    }
    numbers = {name: str(number) for name, number in (milliseconds | counts).items()}
    return stream_headers(compute_type, prompts) | numbers


def _milliseconds(start: float, end: float) -> int:
    return max(0, int((end - start) * 1000))


def _milliseconds_per_token(finish: Finish) -> int:
    seconds = finish.timings.finished - finish.timings.started
    return max(0, int(seconds * 1000 / max(1, finish.generated_tokens)))
