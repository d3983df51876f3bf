"""The generation parameters of all dialects: their checks, in TGI's order and words, and their meaning.

The checks of what TGI doesn't know follow those that it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TypeVar

import numpy
import orjson

from handlers.wire.biases import Biases, logit_bias
from handlers.wire.limits import Limits
from inference.errors import InvalidInput, Member
from inference.types import Sampling, Watermark

Number = TypeVar("Number", int, float)
Draw = Callable[[], int]  # gives a random uint64: the seed of a request that samples and has none

LARGEST = float(numpy.finfo(numpy.float32).max)
SEEDS = 2**64
MOST = Member("max_new_tokens", "`max_new_tokens` (`max_tokens`)")
LEAST = Member("min_new_tokens", "`min_new_tokens` (`min_tokens`)")

Words = tuple[str | Member, ...]  # of a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """What the client gave, by TGI's names; None stands for absent."""

    best_of: int | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    min_p: float | None = None
    do_sample: bool = False
    greedy: bool = False  # temperature 0 of OpenAI's routes: wins over everything that implies sampling
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    seed: int | None = None
    top_n_tokens: int | None = None
    truncate: int | None = None
    logit_bias: Biases = None  # as given: `biases` reads it
    watermark: Watermark | None = None
    cache_salt: str | None = None
    adapter: str | None = None
    biases: Callable[[], tuple[tuple[int, float], ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Read once, however many texts are asked for: there can be one for each token
        object.__setattr__(self, "biases", cache(partial(logit_bias, self.logit_bias)))

    @property
    def candidates(self) -> int:
        """Return how many sequences are generated for the one that is answered with."""
        return 1 if self.best_of is None else self.best_of


def check(parameters: Parameters, limits: Limits) -> None:
    """Raise InvalidInput with the first message that applies: of TGI's list (steps 1 to 11), then of ours."""
    words = next(_problems(parameters, limits), None) or next(_own_problems(parameters), None)
    if words is not None:
        raise InvalidInput(*words)
    parameters.biases()


def sampling(parameters: Parameters, draw: Draw) -> Sampling:
    """Return how tokens are chosen: by sampling as soon as one parameter calls for it, else the likeliest."""
    temperature = _given(parameters.temperature, 1.0)
    top_k = _given(parameters.top_k, 0)
    top_p = _given(parameters.top_p, 1.0)
    typical_p = _given(parameters.typical_p, 1.0)
    min_p = _given(parameters.min_p, 0.0)
    filtered = top_k != 0 or top_p < 1.0 or typical_p < 1.0 or min_p > 0.0
    sample = (parameters.do_sample or temperature != 1.0 or filtered) and not parameters.greedy
    if parameters.greedy:
        typical_p = 1.0  # the likeliest token may not be typical; the other filters always keep it
    seed = parameters.seed
    if seed is None:
        seed = draw() if sample else 0
    return Sampling(
        sample=sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        typical_p=typical_p,
        min_p=min_p,
        repetition_penalty=_given(parameters.repetition_penalty, 1.0),
        frequency_penalty=_given(parameters.frequency_penalty, 0.0),
        presence_penalty=_given(parameters.presence_penalty, 0.0),
        logit_bias=parameters.biases(),
        watermark=parameters.watermark,
        seed=seed,
    )


def samplings(parameters: Parameters, draw: Draw, count: int) -> tuple[Sampling, ...]:
    """Return the `sampling` of texts side by side: seeds of their own, or those that follow a given one."""
    first = sampling(parameters, draw)
    if not first.sample:
        return (first,) * count
    if parameters.seed is not None:
        return tuple(replace(first, seed=(first.seed + place) % SEEDS) for place in range(count))
    return (first, *(replace(first, seed=draw()) for _ in range(count - 1)))


def several(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the stop sequences, which may be given as one text, a list of them, or not at all."""
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def single(number: float | None) -> float | None:
    """Round to the float32 that the engine computes in: what is zero there is checked as the zero it is."""
    if number is None:
        return None
    return float(numpy.float32(min(max(number, -LARGEST), LARGEST)))


def shortest(number: float) -> float | None:
    """Return the float that prints with the fewest digits of its float32; None if it isn't finite."""
    if not math.isfinite(number):
        return None
    return float(str(numpy.float32(number)))


def all_shortest(numbers: Sequence[float]) -> list[float | None]:
    """Return what `shortest` does of each, in a twentieth of the time."""
    with numpy.errstate(over="ignore"):
        column = numpy.array(numbers).astype(numpy.float32)
    found: list[float | None] = orjson.loads(orjson.dumps(column, option=orjson.OPT_SERIALIZE_NUMPY))
    return found


def _problems(given: Parameters, limits: Limits) -> Iterator[Words]:
    """Yield what is wrong, in the order in which TGI looks; the first one is reported."""
    candidates = given.candidates
    if candidates > 1 and not _calls_for_sampling(given):
        yield "you must use sampling when ", Member("best_of"), " is > 1"
    if given.temperature is not None and given.temperature <= 0:
        yield Member("temperature"), " must be strictly positive"
    if given.repetition_penalty is not None and given.repetition_penalty <= 0:
        yield Member("repetition_penalty"), " must be strictly positive"
    if given.frequency_penalty is not None and not -2 <= given.frequency_penalty <= 2:
        yield Member("frequency_penalty"), " must be >= -2.0 and <= 2.0"
    if given.presence_penalty is not None and not -2 <= given.presence_penalty <= 2:
        yield Member("presence_penalty"), " must be >= -2.0 and <= 2.0"
    if given.top_p is not None and not 0 < given.top_p <= 1:
        yield Member("top_p"), " must be > 0.0 and < 1.0"
    if given.typical_p is not None and not 0 < given.typical_p <= 1:
        yield Member("typical_p"), " must be > 0.0 and < 1.0"
    if given.top_k is not None and given.top_k <= 0:
        yield Member("top_k"), " must be strictly positive"
    if given.max_new_tokens is not None and given.max_new_tokens <= 0:
        yield Member("max_new_tokens"), " must be strictly positive"
    if len(given.stop) > limits.max_stop_sequences:
        yield (
            Member("stop"),
            f" supports up to {limits.max_stop_sequences} stop sequences. Given: {len(given.stop)}",
        )
    if candidates > 1 and given.seed is not None:
        yield Member("seed"), " must not be set when `best_of` > 1"
    if given.top_n_tokens is not None and not 0 <= given.top_n_tokens <= limits.max_top_n_tokens:
        yield (
            Member("top_n_tokens"),
            f" must be >= 0 and <= {limits.max_top_n_tokens}. Given: {given.top_n_tokens}",
        )


def _own_problems(given: Parameters) -> Iterator[Words]:
    """Yield what is wrong with what TGI doesn't know."""
    if given.min_p is not None and not 0 <= given.min_p <= 1:
        yield Member("min_p"), " must be >= 0.0 and <= 1.0"
    if given.cache_salt == "":
        yield Member("cache_salt"), " cannot be empty"
    least, most = given.min_new_tokens or 0, given.max_new_tokens
    if most is not None and least > most:
        yield LEAST, " must be <= ", MOST, f". Given: {least} and {most}"


def _calls_for_sampling(given: Parameters) -> bool:
    """Return whether sampling was mentioned: for `best_of`, TGI takes even `temperature: 1.0` for it."""
    mentioned = (given.temperature, given.top_k, given.top_p, given.typical_p, given.min_p)
    return given.do_sample or any(value is not None for value in mentioned)


def _given(value: Number | None, default: Number) -> Number:
    return default if value is None else value
