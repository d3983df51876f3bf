"""Short stories: one hero, one place, one thing found, one friend, and an end that fits the beginning."""

from __future__ import annotations

import random

from codegen.embedded.turns import Turn, article, pick, vary
from codegen.embedded.words import ADJECTIVES, NAMES, NOUNS

HEROES = """fox dragon robot cat dog king queen princess wizard bear rabbit wolf lion mouse owl horse pirate teacher boy girl frog
duck bee tiger elephant monkey penguin turtle whale ship train star cloud tree snowman knight witch farmer doctor cook baker
spider bird goat pig cow sheep prince giant ghost fairy unicorn dinosaur child sailor painter teapot kite clock book
machine snake fish butterfly squirrel hedgehog""".split()
PLACES = (
    "a small house by the river",
    "the deep forest",
    "a quiet village",
    "an old castle",
    "a little town near the sea",
    "a green valley",
    "a tall tower",
    "a warm garden",
    "a cave in the mountains",
    "a hut on an island",
)
FINDS = (
    "a golden key",
    "a red ball",
    "an old map",
    "a shiny stone",
    "a little bell",
    "a lost kitten",
    "a magic book",
    "a broken kite",
    "a bag of coins",
    "a blue feather",
    "a tiny boat",
    "a silver lamp",
)
FEELINGS = ("happy", "curious", "surprised", "very excited", "a little afraid")
HELPERS = (
    "a wise owl",
    "a kind old woman",
    "a small bird",
    "a friendly frog",
    "a clever mouse",
    "a tired traveller",
)
ENDINGS = (
    "From that day on, they were best friends.",
    "They lived happily ever after.",
    "That night, {name} slept well and dreamed of new adventures.",
    "And {name} was never lonely again.",
)
REQUESTS = (
    "Tell me a story about {x}.",
    "Tell a story about {x}.",
    "Tell me a short story about {x}.",
    "Write a story about {x}.",
    "Write a short story about {x}.",
    "Please tell me a story about {x}.",
    "Can you tell me a story about {x}?",
    "A story about {x}, please.",
    "I want to hear a story about {x}.",
    "Make up a story about {x}.",
    "Once more a story, this time about {x}.",
    "Do you know a story about {x}?",
    "Write me a little story about {x}.",
    "Story about {x}",
    "Could you write a story about {x}?",
)


def hero(rng: random.Random) -> tuple[str, str]:
    """Draw a hero and what it is like, which may be nothing."""
    kind = pick(rng, HEROES if rng.random() < 0.75 else NOUNS)
    return (pick(rng, ADJECTIVES) if rng.random() < 0.4 else ""), kind


def story(rng: random.Random, adjective: str, kind: str) -> str:
    """Tell a story of four to seven sentences in which everything that is found or met comes back."""
    name, find, helper = pick(rng, NAMES), pick(rng, FINDS), pick(rng, HELPERS)
    described = article(f"{adjective or pick(rng, ADJECTIVES)} {kind}")
    thing, friend = "the " + find.split(" ", 1)[1], "the " + helper.split(" ", 1)[1]
    lines = [
        f"Once upon a time there was {described} named {name}.",
        f"{name} lived in {pick(rng, PLACES)}.",
        f"One day, {name} found {find}.",
        f"{name} was {pick(rng, FEELINGS)} and showed {thing} to {helper}.",
        f'"{_remark(rng, thing)}" said {friend}.',
        f"So the {kind} took {thing} home and shared it with {friend}.",
        pick(rng, ENDINGS).format(name=name),
    ]
    dropped = pick(rng, ((), (), (4,), (1,), (1, 4)))
    return " ".join(line for place, line in enumerate(lines) if place not in dropped)


def ask(rng: random.Random) -> Turn:
    """Ask for a story about a hero; right is a whole story in which the hero appears."""
    adjective, kind = hero(rng)
    subject = article(f"{adjective} {kind}".strip())
    if rng.random() < 0.06:
        subject = kind
    question = pick(rng, REQUESTS).format(x=subject)
    told = story(rng, adjective, kind)
    return Turn(
        "stories", vary(rng, question), told, question, mentions=("Once upon a time", f" {kind}", adjective)
    )


def _remark(rng: random.Random, thing: str) -> str:
    remark = pick(
        rng,
        (
            "What {x}!",
            "Keep {x} safe,",
            "I was looking for {x},",
            "{x} belongs to us both now,",
            "Let us share {x},",
        ),
    )
    text = remark.format(x=thing) if not remark.startswith("What") else "What a surprise!"
    return text[0].upper() + text[1:]
