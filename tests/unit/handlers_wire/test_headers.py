from __future__ import annotations

from typing import Any

from handlers.wire.headers import answer_headers, batch_headers, stream_headers
from handlers.wire.types import Usage
from inference.types import Timings


def test_an_answer_tells_what_it_took(sample: Any) -> None:
    finish = sample.finish("ab", generated=2)
    headers = answer_headers("1-nvidia-l4", "Hé", finish, 9.0)
    assert headers == {
        "x-compute-type": "1-nvidia-l4",
        "x-compute-time": headers["x-compute-time"],
        "x-compute-characters": "2",
        "x-total-time": "1050",
        "x-validation-time": "1001",
        "x-queue-time": "1",
        "x-inference-time": "47",
        "x-time-per-token": "23",
        "x-prompt-tokens": "2",
        "x-generated-tokens": "2",
    }
    assert abs(float(headers["x-compute-time"]) - 1.0505) < 1e-6


def test_an_answer_to_several_prompts_tells_sums_and_its_usage_and_no_compute_time(sample: Any) -> None:
    slow = Timings(submitted=0.0, queued=0.5, started=1.5, first_token=2.0, finished=3.5)
    finishes = [sample.finish("a", generated=2, timings=slow), sample.finish("b", generated=4, timings=slow)]
    counts: Usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert batch_headers("cpu", ["abc", "de"], finishes, -1.0, counts=counts) == {
        "x-compute-type": "cpu",
        "x-compute-characters": "5",
        "x-total-time": "9000",
        "x-validation-time": "3000",
        "x-queue-time": "2000",
        "x-inference-time": "4000",
        "x-time-per-token": "1500",
        "x-prompt-tokens": "3",
        "x-generated-tokens": "5",
    }


def test_a_stream_tells_what_is_known_before_it() -> None:
    assert stream_headers("cpu", ["abc"]) == {"x-compute-type": "cpu", "x-compute-characters": "3"}
