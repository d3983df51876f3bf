"""Where the tokens of a prompt, and those generated after it, begin in the text."""

from __future__ import annotations

import codecs
import operator
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby

from handlers.wire.openai import TokenBytes, own_bytes
from inference.types import Event, PromptToken

UNSEEN = 8  # characters that tokens without a text of their own may stand for
SOUGHT = 4  # characters by which a place is found again: fewer are soon met elsewhere
FURTHEST = 1024  # characters that are passed over at most: going through all of a text each time takes long
UNTOLD = "CMZ"  # Unicode's categories of what normalisers drop: controls, marks, separators
JAMO = ("\u1160", "\u11ff")  # the parts of a Korean syllable after its first, which are no marks in Unicode

REPLACEMENT = "\ufffd"  # what stands for bytes that are no character, or not yet
Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class TokenPlaces:
    """Where tokens begin in a text; told them one after another.

    A part of a character begins where the character does, also of one that is never complete.
    """

    def __init__(self, start: int = 0, token_bytes: TokenBytes | None = None) -> None:
        self._at = start  # characters
        self._token_bytes = token_bytes

    def prompt(self, tokens: Sequence[PromptToken], text: str) -> list[int]:
        """Return the places of a prompt's tokens; what follows begins at its end.

        Exact where the tokens' bytes are the text's. Where a tokenizer changes a text before, tokens are met
        again by their letters. Those that stand nowhere, such as a BOS that was added, take no room.
        """
        if self._token_bytes is None:
            places = _found(tokens, text, self._at)
        else:
            places = _laid(_runs(tokens, self._token_bytes), text, self._at)
        self._at = len(text)
        return places

    def generated(self, events: Sequence[Event]) -> list[int]:
        """Return the places of generated tokens; special ones take no room."""
        places = []
        for event in events:
            completed = "" if event.token.special else event.token.text
            others = _of_others(completed, own_bytes(event.token, self._token_bytes))
            places.append(self._at + others)
            self._at += len(completed)
        return places


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens in a row: ordinary ones, or one special token some times over."""

    special: bool
    pieces: Sequence[str]  # what each token completes: "" while a character is incomplete
    others: Sequence[int] = ()  # characters of each piece that are of the tokens before it

    @property
    def text(self) -> str:
        """Return what stands in the text; of special tokens once."""
        return self.pieces[0] if self.special else "".join(self.pieces)


def _runs(tokens: Sequence[PromptToken], token_bytes: TokenBytes) -> Iterator[_Run]:
    """Split a prompt's tokens; special ones have no bytes."""
    known = ((token, own_bytes(token, token_bytes)) for token in tokens)
    for special_id, group in groupby(known, key=lambda each: None if each[1] else each[0].id):
        if special_id is None:
            yield _ordinary([data for _, data in group])
        else:
            yield _Run(True, [token.text for token, _ in group])


def _ordinary(parts: Sequence[bytes]) -> _Run:
    utf8 = Utf8Decoder("replace")
    pieces = [utf8.decode(part) for part in parts]
    others = list(map(_of_others, pieces, parts))
    pieces[-1] += utf8.decode(b"", final=True)
    return _Run(False, pieces, others)


def _of_others(completed: str, data: bytes) -> int:
    """Return how many characters of what a token completes stand before it.

    A token that begins a character ends one that was left incomplete: its bytes are a character, too.
    """
    if not completed.startswith(REPLACEMENT) or not data or data[0] & 0xC0 == 0x80:
        return 0
    return len(completed) - len(Utf8Decoder("replace").decode(data))


def _laid(runs: Iterator[_Run], text: str, at: int) -> list[int]:
    """Return the places of the tokens of all runs in a text, from `at` on."""
    places: list[int] = []
    run, following = next(runs, None), next(runs, None)
    while run is not None:
        found, at = _laid_special(run, following, text, at) if run.special else _laid_ordinary(run, text, at)
        places += found
        run, following = following, next(runs, None)
    return places


def _laid_special(run: _Run, following: _Run | None, text: str, at: int) -> tuple[list[int], int]:
    """Return the places of a special token, and where what follows begins.

    Of some in a row the text may hold fewer: after a BOS that was added the client's own, or the one mark of
    an image. The last of them stand there.
    """
    mark, start = run.text, at
    if not text.startswith(mark, at) and not (following and _begins(following.text, text, at)):
        start = max(text.find(mark, at, at + len(mark) + UNSEEN), at)
    end, added = start, len(run.pieces)
    while mark and added and text.startswith(mark, end):
        end, added = end + len(mark), added - 1
    return [*[start] * added, *range(start, end, len(mark) or 1)], end


def _laid_ordinary(run: _Run, text: str, at: int) -> tuple[list[int], int]:
    """Return the places of ordinary tokens, and where what follows begins."""
    characters = _characters(run.text, text, at)
    starts = map(operator.add, accumulate(map(len, run.pieces[:-1]), initial=0), run.others)
    return [characters[start] for start in starts], characters[-1]


def _characters(said: str, text: str, at: int) -> Sequence[int]:
    """Return where each character that tokens stand for is in a text, and where the next one would be."""
    if text.startswith(said, at):
        return range(at, at + len(said) + 1)
    if said[0] == " " and text.startswith(said[1:], at):  # SentencePiece puts a space before a text
        return [at, *range(at, at + len(said))]
    # After what a special token stands for: a character without a token, or a space that it took along
    found = text.find(said, at, at + len(said) + _room(said))
    return _met(said, text, at) if found < 0 else range(found, found + len(said) + 1)


def _begins(said: str, text: str, at: int) -> bool:
    """Return whether a text goes on as tokens do."""
    return text.startswith((said[:SOUGHT], said[:SOUGHT].removeprefix(" ")), at)


def _room(sought: str) -> int:
    """Return how many characters may be passed over to find others: of many it is surer that it's them."""
    return min(UNSEEN * len(sought), FURTHEST)


def _met(said: str, text: str, at: int) -> list[int]:
    """Return the places of characters in a text that was changed before it was split into tokens."""
    places = []
    unmet = 0
    for index, char in enumerate(said):
        sought = said[index : index + SOUGHT]
        found = _meeting(char, sought, said[index + 1 : index + 1 + SOUGHT], text, at, unmet)
        places.append(at if found is None else found)
        at, unmet = (at, unmet + 1) if found is None else (found + 1, 0)
    return [*places, at]


def _meeting(char: str, sought: str, then: str, text: str, at: int, unmet: int) -> int | None:
    """Return where a character is met, None if nowhere; before it `unmet` ones were met nowhere.

    `sought` are it and some after it, and `then` those after it.
    """
    if text.startswith(char, at):
        return at
    letter, end = _letter(char), min(len(text), at + _room(sought))
    if letter:
        ahead = next((place for place in range(at, end) if _letter(text[place])), at)
        if _letter(text[ahead : ahead + 1]) == letter:
            return ahead
    elif text.startswith(then, at):  # a space that was put there
        return None
    found = text.find(sought, at, end + len(sought) + min(unmet, FURTHEST))
    return None if found < 0 else found


@lru_cache(maxsize=4096)
def _letter(char: str) -> str:
    """Return what normalisers leave of a character: its letter without case and marks, or nothing."""
    letter = unicodedata.normalize("NFKD", char.casefold())[:1]
    dropped = not letter or unicodedata.category(letter)[0] in UNTOLD or JAMO[0] <= letter <= JAMO[1]
    return "" if dropped or letter == REPLACEMENT else letter


def _found(tokens: Sequence[PromptToken], text: str, at: int) -> list[int]:
    """Return the places of tokens whose bytes aren't known, by their texts."""
    places = []
    unmet = 0  # characters of the tokens since the last one that was found: what they stand for is as long
    for token in tokens:
        room = UNSEEN + min(unmet, FURTHEST)
        # Parts of characters are all written alike: one that is found needn't be this one
        part = REPLACEMENT in token.text
        found = -1 if part else text.find(token.text, at, at + len(token.text) + room)
        places.append(max(found, at))
        at, unmet = (at, unmet + len(token.text)) if found < 0 else (found + len(token.text), 0)
    return places
