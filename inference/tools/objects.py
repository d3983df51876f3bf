"""A JSON object in a text that comes in pieces."""

from __future__ import annotations

WHITE = " \t\n\r"  # JSON's white space


class JsonObject:
    """Reads a JSON object in a text that comes in pieces, without the white space between its tokens."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.complete = False

    def read(self, text: str) -> tuple[str, str]:
        """Return what a piece adds to the object, all else spelt as it is, and what follows the object."""
        kept: list[str] = []
        for at, char in enumerate(text):
            if self._in_string:
                self._read_string(char)
            elif char in WHITE:
                continue
            elif char == '"':
                self._in_string = True
            elif char == "{":
                self._depth += 1
            elif char == "}":
                self._depth -= 1
                self.complete = not self._depth
            kept.append(char)
            if self.complete:
                return "".join(kept), text[at + 1 :]
        return "".join(kept), ""

    def _read_string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
