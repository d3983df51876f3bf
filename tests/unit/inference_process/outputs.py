"""Strategies for what a core says and is told."""

from __future__ import annotations

from hypothesis import strategies as st

from inference.prompt_tops import PromptTops
from inference.step_stats import StepStats
from inference.types import (
    CoreFailure,
    CoreOutput,
    CoreRequest,
    FinishReason,
    LogprobsMode,
    Sampling,
    Watermark,
)

TOKEN = st.integers(0, 300_000)
LOGPROB = st.floats(max_value=0.0, allow_nan=False)  # -inf where a filter removed the token
TOP = st.lists(st.tuples(TOKEN, LOGPROB), max_size=3).map(tuple)
AMOUNT = st.floats(-100, 100)

SAMPLING = st.builds(
    Sampling,
    sample=st.booleans(),
    temperature=AMOUNT,
    top_k=st.integers(0, 2**31),
    top_p=AMOUNT,
    repetition_penalty=AMOUNT,
    logit_bias=st.lists(st.tuples(TOKEN, AMOUNT), max_size=3).map(tuple),
    watermark=st.none() | st.builds(Watermark, gamma=AMOUNT, delta=AMOUNT),
    seed=st.integers(0, 2**64 - 1),
)
REQUEST = st.builds(
    CoreRequest,
    id=st.text(max_size=40),
    prompt_ids=st.lists(TOKEN, min_size=1, max_size=50).map(tuple),
    max_new_tokens=st.integers(1, 2**31),
    min_new_tokens=st.integers(0, 2**31),
    ignore_eos=st.booleans(),
    sampling=SAMPLING,
    logprobs=st.sampled_from(LogprobsMode),
    top_n_tokens=st.integers(0, 20),
    prompt_logprobs=st.booleans(),
    prompt_top_n_tokens=st.integers(0, 20),
    grammar=st.none(),
    owner=st.text(max_size=20),
    salt=st.text(max_size=20),
    adapter=st.integers(-1, 2**31),
)
STATS = st.builds(
    StepStats,
    prefill_tokens=TOKEN,
    decode_sequences=TOKEN,
    admitted=TOKEN,
    cached_tokens=TOKEN,
    forward_seconds=AMOUNT,
    sample_seconds=AMOUNT,
    waiting=TOKEN,
    running=TOKEN,
    kv_tokens=TOKEN,
    preempted=TOKEN,
)


def outputs(ids: st.SearchStrategy[str]) -> st.SearchStrategy[CoreOutput | CoreFailure]:
    """Return a strategy for anything that a core says of requests with such ids."""
    plain = st.builds(CoreOutput, ids, TOKEN, LOGPROB)
    whole = st.builds(
        CoreOutput,
        ids,
        TOKEN,
        LOGPROB,
        TOP,
        st.none() | st.sampled_from(FinishReason),
        st.floats(0.5, 1e6),
        TOKEN,
        st.none() | st.lists(st.none() | LOGPROB, max_size=4).map(tuple),
        st.none() | st.lists(TOP, max_size=4).map(PromptTops.of),
    )
    return plain | whole | st.builds(CoreFailure, ids, st.text(max_size=20), st.booleans())
