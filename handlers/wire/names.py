"""What dialects call the members that the engine's errors have TGI's names for: in messages and in bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.errors import InferenceError, Member

PROMPT = "inputs"
PARAMETERS = "parameters"  # TGI's bodies have all but the prompt there


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one dialect, by TGI's."""

    paths: Mapping[str, tuple[str, ...]]  # in bodies; of several the first that is given
    # messages have these names, too, and other words where a name isn't enough; None: messages are TGI's
    words: Mapping[str, str] | None = None

    def message(self, error: InferenceError) -> str:
        """Return the message in the dialect's words."""
        return "".join(self._said(word) if isinstance(word, Member) else word for word in error.args)

    def param(self, error: InferenceError, body: object) -> str | None:
        """Return the path of the member that an error is about, None if it isn't about one of this body."""
        request, place = _within(body, error.within)
        if error.member is None:
            return None
        path = error.member.path
        if error.within and not isinstance(request, Mapping):  # a prompt, whose parameters the body has
            return place if path == PROMPT else self._path(body, "", path)
        return self._path(request, place and f"{place}.", path)

    def _path(self, request: object, before: str, path: str) -> str | None:
        if not isinstance(request, Mapping):
            return None
        paths = (*self.paths.get(path, ()), path, f"{PARAMETERS}.{path}")
        return next((before + path for path in paths if _has(request, path)), None)

    def _said(self, member: Member) -> str:
        if self.words is None:
            return str(member)
        own = self.paths.get(member.path)
        return self.words.get(member.path) or (str(member) if own is None else f"`{own[0]}`")


# Of chats and completions; TGI's own bodies have TGI's names
OPENAI = Names(
    {
        "inputs": ("messages", "prompt"),
        "max_new_tokens": ("max_completion_tokens", "max_tokens"),
        "min_new_tokens": ("min_tokens",),
        "decoder_input_details": ("echo",),
        "top_n_tokens": ("top_logprobs", "logprobs"),
        "best_of": ("best_of", "n"),
        "adapter_id": ("model",),
    }
)
RESPONSES = Names(
    {
        "inputs": ("input",),
        "messages": ("input",),
        "max_new_tokens": ("max_output_tokens",),
        "min_new_tokens": ("min_tokens",),
        "top_n_tokens": ("top_logprobs",),
        "adapter_id": ("model",),
    },
    {
        "n": "tokens",  # there is one text
        "adapter_id": "an adapter as `model`",
        "messages[].tool_calls": "a `function_call`: leave it out",
    },
)
MESSAGES = Names(
    {
        "inputs": ("messages",),
        "max_new_tokens": ("max_tokens",),
        "min_new_tokens": ("min_tokens",),
        "stop": ("stop_sequences",),
        "adapter_id": ("model",),
    },
    {"adapter_id": "an adapter as `model`"},
)
BY_OPERATION = {  # whose bodies aren't chats, completions or TGI's
    "create_response": RESPONSES,
    "count_input_tokens": RESPONSES,
    "create_message": MESSAGES,
    "count_message_tokens": MESSAGES,
}


def names_of(operation: str) -> Names:
    """Return the names that the bodies of an operation have."""
    return BY_OPERATION.get(operation, OPENAI)


def _within(body: Any, path: Sequence[str | int]) -> tuple[Any, str]:
    """Return the request, or the prompt, to which a path leads, and the path as it is told: a[1]."""
    place = ""
    for step in path:
        body = body[step]
        place += f"[{step}]" if isinstance(step, int) else f".{step}"
    return body, place.removeprefix(".")


def _has(body: Mapping[str, object], path: str) -> bool:
    """Return whether a body has the member with which a path begins."""
    first, _, below = path.partition(".")
    if first == PARAMETERS:
        inner = body.get(PARAMETERS)
        return isinstance(inner, Mapping) and _step(below) in inner
    return _step(first) in body


def _step(path: str) -> str:
    """Return the name of a path's first step."""
    return path.partition(".")[0].partition("[")[0]
