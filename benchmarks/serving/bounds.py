"""What a machine allows at most for a workload: the time of what must be read and of what must be multiplied.

A bound holds for every server, ours or not: nothing is counted but weights, keys and values read once in a
step, and the products that cannot be left out. Frameworks, HTTP and the load client take no time in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.limits import Limits
from benchmarks.serving.models import Shape
from benchmarks.serving.servers import Group
from benchmarks.serving.workloads import Workload


@dataclass(frozen=True, slots=True)
class Size:
    """What of a model's shape decides the work; norms and biases are nothing beside it."""

    body: int  # weights that each token is multiplied by
    head: int  # weights that give a token's logits; they are the embedding, too
    kv: int  # numbers of a token in the cache
    attention: int  # operations of a token for each token that it attends to

    @classmethod
    def of(cls, shape: Shape) -> Size:
        """Count a shape's weights."""
        config = shape.config
        hidden, heads, layers = (
            config[key] for key in ("hidden_size", "num_attention_heads", "num_hidden_layers")
        )
        dim = config.get("head_dim", hidden // heads)
        kv = 2 * config["num_key_value_heads"] * dim
        layer = hidden * (2 * heads * dim + kv) + 3 * hidden * config["intermediate_size"]
        return cls(layers * layer, hidden * config["vocab_size"], layers * kv, 4 * layers * heads * dim)

    @property
    def weights(self) -> int:
        """Return the weights that a step of texts reads."""
        return self.body + self.head


@dataclass(frozen=True, slots=True)
class Precision:
    """What a number costs; of several peaks that products may have, the largest counts."""

    weight_bytes: float
    kv_bytes: int
    products: tuple[str, ...]
    attention: tuple[str, ...]


# The models' weights are bfloat16's values in fp32, too, and 12 bits hold these exactly, which is how Parley
# reads them: with fewer bytes the bound is higher.
PRECISIONS = {
    Group.F32: Precision(1.5, 4, ("mixed_flops",), ("float_flops",)),
    Group.HALF: Precision(1.5, 2, ("float_flops", "bfloat16_flops"), ("float_flops", "bfloat16_flops")),
    Group.INT8: Precision(
        1, 2, ("float_flops", "bfloat16_flops", "int8_flops"), ("float_flops", "bfloat16_flops")
    ),
}


@dataclass(frozen=True, slots=True)
class Bound:
    """Output tokens per second that no server exceeds."""

    apart: float  # if prompts are computed in steps of their own
    mixed: float  # if they share the texts' steps, so that weights are read while prompts are multiplied


Bounds = Callable[[Group, str], Bound]  # of the server's kind of weights and the workload's name


def bound(size: Size, precision: Precision, workload: Workload, limits: Limits) -> Bound:
    """Return the most that a workload's output can be: all clients in each step, a shared prefix once."""
    products, peak = _clock(size, precision, limits), limits.read_bytes
    weights = precision.weight_bytes * size.weights / peak
    waves = workload.requests / workload.clients
    owns = workload.own_lengths
    prompts = products(
        workload.shared + sum(owns),
        workload.requests,
        workload.shared * (workload.shared + 1) / 2
        + sum(own * (workload.shared + (own + 1) / 2) for own in owns),
    )
    steps = waves * (workload.output - 1)  # a text's first token is its prompt's
    context = workload.shared + sum(owns) / len(owns) + workload.output / 2  # of a text's steps, the mean
    cached = workload.shared + workload.clients * (context - workload.shared)
    reading = weights + precision.kv_bytes * size.kv * cached / peak
    texts = products(workload.clients, workload.clients, workload.clients * context)
    apart = max(prompts, waves * weights) + steps * max(reading, texts)
    # one client's prompt has no other's text to share a step with
    mixed = apart if workload.clients == 1 else max(prompts + steps * texts, steps * reading)
    return Bound(workload.tokens / apart, workload.tokens / mixed)


def _clock(size: Size, precision: Precision, limits: Limits) -> Callable[[float, float, float], float]:
    """Return what gives the seconds of products: of tokens, of logits' rows, of pairs of tokens."""
    linear = max(getattr(limits, name) for name in precision.products)
    attention = max(getattr(limits, name) for name in precision.attention)

    def seconds(tokens: float, rows: float, pairs: float) -> float:
        return 2 * (tokens * size.body + rows * size.head) / linear + pairs * size.attention / attention

    return seconds
