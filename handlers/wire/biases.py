"""`logit_bias`: what is added to the logits of single tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from inference.errors import InvalidInput, Member

Biases = Mapping[str, float] | Sequence[float] | None
LONGEST_ID = 10  # digits of the largest uint32
MOST = 100.0  # OpenAI's bound, in both directions
MOST_BIASES = 32_768  # other than 0; an object of more is refused before, an array may be zeros
SHOWN = 40  # characters of a key


def logit_bias(given: Biases) -> tuple[tuple[int, float], ...]:
    """Return (token id, bias) in the order of ids, without zeros.

    An object names tokens by their ids in decimal; an array, TGI's form, holds the biases of the tokens
    0, 1, and so on. Raises InvalidInput, which names the key or the value. Whether the model has such a
    token is for the engine to say.
    """
    if not given:
        return ()
    pairs = _named(given) if isinstance(given, Mapping) else enumerate(given)
    biases = []
    for token_id, bias in pairs:
        if not -MOST <= bias <= MOST:
            raise InvalidInput(
                Member("logit_bias"),
                f" of token {token_id} must be >= {-MOST:g} and <= {MOST:g}. Given: {bias:g}",
            )
        if bias:
            biases.append((token_id, float(bias)))
    if len(biases) > MOST_BIASES:
        raise InvalidInput(
            Member("logit_bias"),
            f" must have at most {MOST_BIASES} biases other than 0. Given: {len(biases)}. Send fewer",
        )
    return tuple(sorted(biases))


def _named(given: Mapping[str, float]) -> Iterator[tuple[int, float]]:
    for name, bias in given.items():
        digits = name.isascii() and name.isdecimal() and len(name) <= LONGEST_ID
        if not digits or (name[0] == "0" and name != "0"):
            shown = name if len(name) <= SHOWN else name[:SHOWN] + "…"
            raise InvalidInput(
                Member("logit_bias"), f' names tokens by their ids in decimal. Given: "{shown}"'
            )
        yield int(name), bias
