"""What the soak asks for: random requests of every kind, the same ones for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from inference.types import Grammar, GrammarKind, LogprobsMode, Request, Sampling, Watermark

WORDS = "the a red blue old dog cat bird house river said went saw made three seven and but so then".split()
_HEADS = (0, 0, 3, 20, 40, 90, 160)  # words that prompts of one kind begin with
_STOPS = (".", "\n", " the", "e", "and", "qqq")
_OWNERS = ("", "anna", "bert", "carl")
_SALTS = ("", "", "", "red", "blue")

GRAMMARS: dict[GrammarKind, str] = {
    GrammarKind.JSON_SCHEMA: json.dumps(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    ),
    GrammarKind.REGEX: r"(yes|no|perhaps), [0-9]{1,3}",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """Some sequences that are asked for at once, and how long somebody stays to listen."""

    requests: tuple[Request, ...]
    stays: int | None = None  # events of each after which it is cancelled; None: to the end
    patience: float | None = None  # seconds after which it is cancelled, whatever it does then
    refused: bool = False  # it can't be served as it is


def asks(count: int, seed: int, longest: int, adapters: tuple[str, ...] = ()) -> Iterator[Ask]:
    """Give asks until `count` sequences were asked for; prompts and texts of up to `longest` tokens.

    Two of them are the model's alone for each that is one of the adapters'.
    """
    dice = random.Random(seed)
    heads = [" ".join(dice.choices(WORDS, k=size)) for size in _HEADS]
    made = 0
    while made < count:
        size = min(dice.choice((1, 1, 1, 1, 1, 1, 2, 3)), count - made)  # `n` of one prompt
        template = _request(dice, dice.choice(heads), longest)
        if adapters:
            template["adapter"] = dice.choice((*(None,) * 2 * len(adapters), *adapters))
        refused = dice.random() < 0.02
        if refused:
            template |= {"prompt": "dog " * 4 * longest, "truncate": None}
        requests = tuple(
            Request(id=f"soak-{made + at}", **template)  # type: ignore[arg-type]
            for at in range(size)
        )
        stays = dice.randint(0, 20) if dice.random() < 0.1 else None
        patience = dice.expovariate(5.0) if dice.random() < 0.05 and not refused else None
        yield Ask(requests, stays, patience, refused)
        made += size


def _request(dice: random.Random, head: str, longest: int) -> dict[str, object]:
    tail = " ".join(dice.choices(WORDS, k=min(1 + int(dice.expovariate(0.1)), longest // 4)))
    guided = dice.random() < 0.08
    long = not guided and dice.random() < 0.15  # so that it outgrows the blocks that it began with
    brief = 1 + int(dice.expovariate(0.05))
    return {
        "prompt": f"{head} {tail}",
        "max_new_tokens": dice.randint(longest // 4, longest // 2) if long else min(brief, longest // 2),
        "truncate": longest // 2,
        "ignore_eos": not guided and (long or dice.random() < 0.3),
        "stop": tuple(dice.sample(_STOPS, dice.randint(1, 3))) if dice.random() < 0.2 else (),
        "grammar": _grammar(dice) if guided else None,
        "sampling": _sampling(dice),
        **_logprobs(dice),
        "owner": dice.choice(_OWNERS),
        "cache_salt": dice.choice(_SALTS),
    }


def _logprobs(dice: random.Random) -> dict[str, object]:
    top, prompt = dice.choice((0, 0, 0, 1, 5)), dice.random() < 0.05
    told = [each for each in LogprobsMode if each is not LogprobsMode.NONE or not (top or prompt)]
    return {"logprobs": dice.choice(told), "top_n_tokens": top, "prompt_logprobs": prompt}


def _grammar(dice: random.Random) -> Grammar:
    kind = dice.choice(tuple(GRAMMARS))
    return Grammar(kind=kind, source=GRAMMARS[kind])


def _sampling(dice: random.Random) -> Sampling:
    if dice.random() < 0.4:
        return Sampling(repetition_penalty=dice.choice((1.0, 1.0, 1.2)))
    return Sampling(
        sample=True,
        seed=dice.getrandbits(64),
        temperature=dice.uniform(0.3, 2.0),
        top_k=dice.choice((0, 0, 1, 20)),
        top_p=dice.choice((1.0, 0.9)),
        typical_p=dice.choice((1.0, 1.0, 0.9)),
        min_p=dice.choice((0.0, 0.0, 0.05)),
        frequency_penalty=dice.choice((0.0, 0.0, 0.5)),
        presence_penalty=dice.choice((0.0, 0.0, -0.3)),
        logit_bias=((5, 2.0), (9, -100.0)) if dice.random() < 0.1 else (),
        watermark=Watermark() if dice.random() < 0.05 else None,
    )
