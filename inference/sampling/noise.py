"""Random numbers that depend on nothing but (seed, position).

A generator with a state would tie a request's tokens to how often it was asked; these are a hash,
so a seeded request draws the same numbers alone, in any batch, and again after it was preempted.
The hash is two rounds of splitmix64's finaliser (Steele, Lea, Flood: "Fast splittable
pseudorandom number generators", 2014), the position mixed in between.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BITS = 48  # of the result; leaves room below 1.0 when it is scaled in float64


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return one number of [0, 1) for each pair of seed and position; all of shape (n,)."""
    hashed = _mix(_mix(seeds + np.uint64(0x9E3779B97F4A7C15)) + positions * np.uint64(0xD1342543DE82EF95))
    return (hashed >> np.uint64(64 - _BITS)).astype(np.float64) * 2.0**-_BITS


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64's finaliser of each value, in arithmetic modulo 2**64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
