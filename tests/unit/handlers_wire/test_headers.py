from __future__ import annotations

from typing import Any

from handlers.wire.headers import answer_headers, batch_headers, stream_headers
from handlers.wire.types import Usage
from inference.types import Timings


def test_an_answer_tells_what_it_took(sample: Any) -> None:
    finish = sample.finish("ab", generated=2)
    headers = answer_headers("1-nvidia-l4", "Hé", [finish], 9.0)
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
        "x-time-per-token": "666",
        "x-prompt-tokens": "3",
        "x-generated-tokens": "5",
    }


def until(finished: float) -> Timings:
    return Timings(submitted=0.0, queued=0.0, started=0.0, first_token=0.5, finished=finished)


def test_texts_of_one_prompt_take_as_long_as_the_last_of_them(sample: Any) -> None:
    finishes = [
        sample.finish("a", generated=9, timings=until(2.0)),
        sample.finish("b", generated=4, timings=until(3.0)),
    ]
    headers = answer_headers("cpu", "abc", finishes, 0.0)
    assert (headers["x-total-time"], headers["x-inference-time"]) == ("3000", "3000")
    assert (headers["x-time-per-token"], headers["x-generated-tokens"]) == ("750", "13")


def test_times_add_up_over_prompts_and_not_over_the_texts_of_one(sample: Any) -> None:
    ends = [(2, 1.0), (2, 2.0), (8, 4.0), (4, 3.0)]
    finishes = [sample.finish("a", generated=tokens, timings=until(end)) for tokens, end in ends]
    counts: Usage = {"prompt_tokens": 3, "completion_tokens": 16, "total_tokens": 19}
    headers = batch_headers("cpu", ["abc", "de"], finishes, -1.0, counts=counts)
    assert (headers["x-total-time"], headers["x-validation-time"]) == ("8000", "2000")
    assert (headers["x-inference-time"], headers["x-time-per-token"]) == ("6000", "600")


def test_the_time_per_token_of_one_text_is_that_of_its_prompt_alone(sample: Any) -> None:
    finish = sample.finish("ab", generated=2)
    counts: Usage = {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    batch = batch_headers("cpu", ["Hé"], [finish], 9.0, counts=counts)
    alone = answer_headers("cpu", "Hé", [finish], 9.0)
    assert batch == {name: value for name, value in alone.items() if name != "x-compute-time"}


def test_a_stream_tells_what_is_known_before_it() -> None:
    assert stream_headers("cpu", ["abc"]) == {"x-compute-type": "cpu", "x-compute-characters": "3"}
