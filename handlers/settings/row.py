"""What a row of the table of settings is, and how its text is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Generic, TypeVar

from inference.files.adapters import parse_adapters

INT8 = ("int8", "eetq")  # what can only be done at the start, and is the same here
OF_FILES = ("awq", "gptq", "marlin", "compressed-tensors", "fp8", "bitsandbytes")  # TGI's methods
OF_FILES_IN_4_BITS = ("bitsandbytes-nf4", "bitsandbytes-fp4")
CACHE_TYPES = ("auto", "float32", "bfloat16")
CACHE_TYPES_OF_TGI = ("fp8_e4m3fn", "fp8_e5m2")
ENDPOINT = re.compile(r"https?://[^\s/?#]+/?|[^\s/?#:]+:[0-9]+")
# a name, an IPv4 address, or an IPv6 address in brackets; then a port
HOST = re.compile(r"(?:(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\])(?::[1-9]\d{0,4})?")
# as browsers write it: RFC 6454, 6.2. A port that goes without saying isn't said
ORIGIN = re.compile(r"\*|null|(?!https://\S+:443$|http://\S+:80$)[a-z][a-z0-9+.-]*://[a-z0-9._\-\[\]:]+")
BLANKS = " \t"
LATIN_1 = 0xFF  # its last character
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # RFC 9110, 5.5: a tab may stand within a header
INTEGER = re.compile(r"[+-]?[0-9]+")
MOST_DIGITS = 1000
MOST_SIZES = 1000  # of batches
LARGEST_BATCH = 65_536  # sequences; none is computed at once beyond it

T = TypeVar("T")
Parse = Callable[[str], T]


class SettingsError(Exception):
    """A setting is unknown, malformed, or at odds with another; the message says which and what to do."""


class Support(StrEnum):
    """What becomes of a setting that is given."""

    HONOURED = "honoured"
    ACCEPTED = "accepted"  # taken so that a deployment starts unchanged; a warning says why it has no effect
    LATER = "later"  # its feature doesn't exist yet: anything but a neutral value is refused


class Group(StrEnum):
    """The parts of the help and of docs/settings.md, in their order."""

    MODEL = "The model"
    ENGINE = "The engine: sizes and limits"
    REQUEST = "What a request may ask for"
    IMAGES = "Images, for models that take them"
    HTTP = "HTTP: address, keys and connections"
    LOGS = "Logs and traces"
    DEVICES = "GPUs, and one model on several processes"
    SWITCHES = "Optimisations: leave them on, but to measure what they gain"


@dataclass(frozen=True, slots=True)
class Effect:
    """When a value has an effect."""

    holds: Callable[[Any], bool]  # of `Settings`
    otherwise: str  # why it has none
    neutral: tuple[object, ...] = ()  # values, beside the default, that ask for nothing where it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Generic[T]):
    """One row: where a value may come from, how its text is read, what it means."""

    attribute: str = ""  # the name in `Settings`; set from there
    default: T
    parse: Parse[T]
    help: str
    group: Group
    tgi: bool = True  # false: Parley's own
    support: Support = Support.HONOURED
    neutral: tuple[T | None, ...] = ()  # values of a LATER row, beside its default, that ask for nothing
    reason: str = ""  # ACCEPTED: why it has no effect; LATER: what to do instead
    effect: Effect | None = None  # None: always; otherwise a value that has none is warned of
    unit: str = ""
    metavar: str = ""
    short: str = ""
    flags: tuple[str, ...] | None = None  # None: --attribute-with-dashes; (): read from the environment only
    env: tuple[str, ...] | None = None  # the first one set counts; None: ATTRIBUTE, or PARLEY_ATTRIBUTE
    winning_env: str = ""  # beats even the flag
    exclusive: bool = False  # naming it twice, by two of its names, is an error
    secret: bool = False  # never printed
    empty_is_unset: bool = True  # false: an empty variable is refused, as leaving it out would be dangerous

    @property
    def names(self) -> tuple[str, ...]:
        """Return its flags, the current one first."""
        return ("--" + self.attribute.replace("_", "-"),) if self.flags is None else self.flags

    @property
    def variables(self) -> tuple[str, ...]:
        """Return its environment variables, the one that counts most first."""
        own = self.attribute.upper() if self.tgi else "PARLEY_" + self.attribute.upper()
        names = (own,) if self.env is None else self.env
        return (self.winning_env, *names) if self.winning_env else names

    @property
    def switch(self) -> bool:
        """Return whether its flag may stand without a value."""
        return self.parse is boolean

    def show(self, value: object) -> str:
        """Return the text that would set the value."""
        if value is None:
            return ""
        if isinstance(value, tuple):
            return ",".join(map(str, value))
        return str(value).lower() if isinstance(value, bool) else str(value)


def row(default: T, parse: Parse[T], group: Group, help: str, **rest: Any) -> T:
    """Declare a field of `Settings`; `rest` are the other fields of `Setting`.

    Typed as the value so that the type of the attribute, its default and its parser must agree.
    """
    setting = Setting(default=default, parse=parse, group=group, help=help, **rest)
    value: T = field(default=default, repr=not setting.secret, metadata={"setting": setting})
    return value


def rows_of(table: type[Any]) -> tuple[Setting[Any], ...]:
    """Return the rows that the fields of a dataclass were declared with, in their order."""
    return tuple(replace(item.metadata["setting"], attribute=item.name) for item in fields(table))


def text(value: str) -> str:
    """Take the text as it is; it may not be empty."""
    if not value.strip():
        raise ValueError("must not be empty")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError("must be UTF-8")  # what a variable or argument of other bytes becomes
    return value


def bearer_key(value: str) -> str:
    """Take a key as a header can have it, without the line's end of a file that it was read from."""
    key = _line(value)
    if key[0] in BLANKS or key[-1] in BLANKS:
        raise ValueError("must have no space or tab at its ends, which a header would lose")
    return key


def header_text(value: str) -> str:
    """Take what a header of an answer can say, without what stands around it."""
    said = _line(value).strip(BLANKS)
    for place, char in enumerate(said, 1):
        if ord(char) > LATIN_1:
            where = f"U+{ord(char):04X} at character {place}"
            raise ValueError(f"must be in Latin-1, as headers are: there is {where}")
    return said


def _line(value: str) -> str:
    """Take a text of one line, without the line's end of a file that it was read from."""
    line = text(value).removesuffix("\n").removesuffix("\r")
    control = CONTROL.search(line)
    if control is not None:
        where = f"U+{ord(control[0]):04X} at character {control.start() + 1}"
        raise ValueError(f"must have no control character, which a header can't carry: there is {where}")
    return line


def comma_list(value: str) -> tuple[str, ...]:
    """Split at commas."""
    value = text(value) if value.strip() else ""
    return tuple(part.strip() for part in value.split(",") if part.strip())


def origin_list(value: str) -> tuple[str, ...]:
    """Split at commas, into origins as browsers write them: no capitals, and no slash at the end."""
    return tuple(origin.removesuffix("/") for origin in comma_list(value.lower()))


def host_list(value: str) -> tuple[str, ...]:
    """Split at commas, into hosts: names, with `*.` before if need be, or addresses, maybe with a port."""
    hosts = comma_list(value.lower())
    for host in hosts:
        if HOST.fullmatch(host) is None:
            raise ValueError(f"must be hosts such as minio.internal:9000 or *.example.org, not {host!r}")
    return hosts


def adapter_list(value: str) -> tuple[str, ...]:
    """Split at commas, into LoRA adapters of different names."""
    adapters = comma_list(value)
    parse_adapters(adapters)
    return adapters


def batch_sizes(value: str) -> tuple[int, ...]:
    """Read sizes of batches, split at commas; 0 alone: none."""
    read = integer(0, LARGEST_BATCH)
    sizes = tuple(read(part) for part in comma_list(value))
    if not sizes or (0 in sizes and len(sizes) > 1) or len(sizes) > MOST_SIZES:
        raise ValueError(f"must be up to {MOST_SIZES} sizes of batches such as 1,2,4,8, or 0")
    return sizes


def route(value: str) -> str:
    """Take the path of a URL, without the braces of a template."""
    path = text(value).strip()
    if not path.startswith("/") or any(char in "{}?#" or char.isspace() for char in path):
        raise ValueError("must be a path such as /predict")
    return path


def endpoint(value: str) -> str:
    """Take the address of a collector: a URL of http or https, or host:port."""
    address = text(value).strip()
    if ENDPOINT.fullmatch(address) is None:
        raise ValueError("must be a URL, such as http://collector:4317")
    if "@" in address:  # gRPC takes it for a part of the host's name, and logs it
        instead = "what a collector asks for is sent by OTEL_EXPORTER_OTLP_HEADERS"
        raise ValueError(f"must have no user and no password: {instead}")
    return address


def boolean(value: str) -> bool:
    """Read true, 1, false or 0."""
    known = {"true": True, "1": True, "false": False, "0": False}
    if value.strip().lower() not in known:
        raise ValueError("must be true, 1, false or 0")
    return known[value.strip().lower()]


def choice(*choices: str) -> Parse[str]:
    """Return a reader of one of the words."""

    def parse(value: str) -> str:
        if value.strip().lower() not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value.strip().lower()

    return parse


def quantization(value: str) -> str | None:
    """Read int8, one of TGI's methods, or none; the model's files may contradict it later."""
    method = value.strip().lower()
    if method == "none":
        return None
    if method == "exl2":
        raise ValueError(
            "must be another: weights of exl2 can't be read; serve the original model, with int8"
        )
    if method not in (*INT8, *OF_FILES, *OF_FILES_IN_4_BITS):
        raise ValueError(
            "must be int8 or none, or what the model's files were quantised by: "
            f"{', '.join((*OF_FILES, *OF_FILES_IN_4_BITS))}"
        )
    return method


def cache_type(value: str) -> str:
    """Read auto, float32 or bfloat16; TGI's types of 8 bits are refused with what to do instead."""
    name = value.strip().lower()
    if name in CACHE_TYPES_OF_TGI:
        raise ValueError(
            "must be auto, float32 or bfloat16: keys and values aren't kept in 8 bits here; bfloat16 is the "
            "smallest"
        )
    if name not in CACHE_TYPES:
        raise ValueError("must be auto, float32 or bfloat16")
    return name


def integer(minimum: int, maximum: int = 2**63 - 1) -> Parse[int]:
    """Return a reader of an integer within both bounds."""

    def parse(value: str) -> int:
        given = INTEGER.fullmatch(value.strip().replace("_", ""))
        if given is None:
            raise ValueError("must be an integer")
        # `int` refuses some thousand digits with words of its own
        number = int(given[0]) if len(given[0]) <= MOST_DIGITS else None
        if number is None or not minimum <= number <= maximum:
            endless = maximum == 2**63 - 1 and number is not None and number < minimum
            bounds = f"at least {minimum}" if endless else f"from {minimum} to {maximum}"
            raise ValueError(f"must be {bounds}")
        return number

    return parse


def decimal(
    minimum: float,
    maximum: float = float("inf"),
    *,
    above: bool = False,
    below: bool = False,
    zero: bool = False,
) -> Parse[float]:
    """Return a reader of a finite number within both bounds.

    `above` and `below` leave the bounds out; with `zero`, 0 is taken beside what is between them.
    """
    bounds = "0, or " if zero else ""
    bounds += f"greater than {minimum:g}" if above else f"at least {minimum:g}"
    if maximum != float("inf"):
        bounds += f" and less than {maximum:g}" if below else f" and at most {maximum:g}"

    def parse(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            raise ValueError("must be a number") from None
        high_enough = number > minimum if above else number >= minimum
        low_enough = number < maximum if below else number <= maximum
        within = high_enough and low_enough and number != float("inf")  # false for NaN, too
        if not (within or (zero and number == 0)):
            raise ValueError(f"must be {bounds}")
        return number

    return parse


# what rows of several groups take
PORT = integer(1, 65535)
COUNT = integer(1, 1_000_000)
TOKENS = integer(1, 2**31 - 1)  # the engine counts positions in 32 bits
TEXT_TOKENS = integer(2, 2**31 - 1)  # of a prompt and its answer, a token each
BYTES = integer(1, 2**40)
DAY = 86_400  # seconds; a timer for much longer overflows somewhere
TIMEOUT = decimal(0.001, DAY)
