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


def answer_headers(compute_type: str, prompt: str, finishes: Sequence[Finish], received: float) -> Headers:
    """Return the headers of an answer to one prompt: the times of the text that ended last, all tokens.

    `received` is the request's time.monotonic().
    """
    last = _last(finishes)
    headers = stream_headers(compute_type, [prompt]) | _times([last], received)
    headers["x-prompt-tokens"] = str(last.prompt_tokens)
    headers["x-generated-tokens"] = str(sum(finish.generated_tokens for finish in finishes))
    headers["x-compute-time"] = f"{last.timings.finished - received:.9f}"
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

    `finishes` are those of one prompt's texts after another's, equally many of each. `counts` is the answer's
    usage, where a prompt counts once however many texts follow it.
    """
    several = len(finishes) // len(prompts)
    lasts = [_last(finishes[at : at + several]) for at in range(0, len(finishes), several)]
    headers = stream_headers(compute_type, prompts) | _times(lasts, received)
    headers["x-prompt-tokens"] = str(counts["prompt_tokens"])
    headers["x-generated-tokens"] = str(counts["completion_tokens"])
    return headers


def _last(finishes: Sequence[Finish]) -> Finish:
    """Return the finish whose times are the prompt's: texts that ran side by side don't add up."""
    return max(finishes, key=lambda finish: finish.timings.finished)


def _times(lasts: Sequence[Finish], received: float) -> Headers:
    """Return the times of texts, one of each prompt, in milliseconds: sums, but for that of a token."""
    each = [finish.timings for finish in lasts]
    tokens = sum(finish.generated_tokens for finish in lasts)
    sums = {
        "x-total-time": sum(_milliseconds(times.finished - received) for times in each),
        "x-validation-time": sum(_milliseconds(times.queued - received) for times in each),
        "x-queue-time": sum(_milliseconds(times.started - times.queued) for times in each),
        "x-inference-time": sum(_milliseconds(times.finished - times.started) for times in each),
    }
    inference = sum(times.finished - times.started for times in each)
    per_token = {"x-time-per-token": _milliseconds(inference / max(1, tokens))}
    return {name: str(number) for name, number in (sums | per_token).items()}


def _milliseconds(seconds: float) -> int:
    return max(0, int(seconds * 1000))
