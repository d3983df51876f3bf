"""What crosses between the processes; nothing else is read from their sockets.

Over the engine's socket an API process sends `Attach`, `Vocabulary`, `Look`, `Submit` and `Abort`, and gets
`Progress`, then `Ready` or `Unavailable`, and a `Batch` for each step that concerns it, or for images that
were looked at. A `Change` of the adapters is told to all by an `Edition`, which each answers by `Heard`, and
then to who asked for it by `Changed`. Requests are numbered by the API process that has them. The process
that spawned the engine talks to it over a pair of sockets of their own: `Configuration` and `Stop` there;
`Logged`, `Progress`, `Ready`, `Unavailable`, `Kept` and `Pulse` back.
"""

from __future__ import annotations

import msgspec

from inference.config import EngineConfig
from inference.ipc.grammar_tokens import GrammarSource, GrammarTokens
from inference.prompt_tops import PromptTops, TopTokens
from inference.step_stats import StepStats
from inference.types import FinishReason, LogprobsMode, ModelInfo, Sampling


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Anything that crosses; a list of values, its kind first."""


# --- from API processes ---------------------------------------------------------------------


class Attach(Message, frozen=True, tag=0):
    """The first word of an API process."""

    stats: bool  # whether it wants the numbers of every step


class Vocabulary(Message, frozen=True, tag=1):
    """The tokens that the grammars of this process are for."""

    tokens: GrammarTokens


class Submit(Message, frozen=True, tag=2):
    """A request; see `CoreRequest`."""

    number: int  # that its sender knows it by, never used twice
    id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    min_new_tokens: int
    ignore_eos: bool
    sampling: Sampling
    logprobs: LogprobsMode
    top_n_tokens: int
    prompt_logprobs: bool
    prompt_top_n_tokens: int
    grammar: GrammarSource | None
    owner: str
    salt: str
    adapter: int
    images: int = 0


class Look(Message, frozen=True, tag=4):
    """The images of a request, which will be submitted under this number."""

    number: int
    id: str
    files: tuple[bytes, ...]  # of at most `images.ENOUGH_BYTES` together
    which: tuple[int, ...]  # of the files each image is: one that comes several times crosses once
    salt: str


class Change(Message, frozen=True, tag=5):
    """An adapter is to be loaded or unloaded; see `AdapterChange`."""

    number: int
    name: str
    source: str | None
    replaces: bool


class Heard(Message, frozen=True, tag=6):
    """Requests name adapters by this edition from now on."""

    edition: int


class Abort(Message, frozen=True, tag=3):
    """Nothing more is wanted of a request."""

    number: int


# --- from the engine ------------------------------------------------------------------------


class Progress(Message, frozen=True, tag=10):
    """A line about the loading."""

    line: str


class Ready(Message, frozen=True, tag=11):
    """The model is loaded, and requests are taken."""

    model: ModelInfo


class Unavailable(Message, frozen=True, tag=12):
    """The model can't be loaded, and the engine ends."""

    message: str


class More(Message, frozen=True):
    """What an output has besides its token."""

    at: int  # which of the batch's tokens
    top: TopTokens
    finish: FinishReason | None
    started: float  # time.monotonic() seconds, which all processes of a machine share
    cached_tokens: int
    prompt_logprobs: tuple[float | None, ...] | None
    prompt_top: PromptTops | None


class Failed(Message, frozen=True):
    """The terminal failure of a request."""

    number: int
    message: str
    own: bool = False


class Seen(Message, frozen=True):
    """What became of a request's images; see `Looked`."""

    number: int
    images: tuple[tuple[int, ...], ...]
    message: str
    invalid: bool
    which: int = 0
    member: str = ""


class Batch(msgspec.Struct, array_like=True, gc=False, tag=13):
    """All that one step has to say to one API process; tokens are columns of the same length."""

    numbers: list[int] = []
    tokens: list[int] = []
    logprobs: list[float] = []
    more: list[More] = []
    failures: list[Failed] = []
    looked: list[Seen] = []
    stats: StepStats | None = None


class Edition(Message, frozen=True, tag=14):
    """The adapters that requests can name from now on; to be answered by `Heard`."""

    number: int
    adapters: dict[str, int]


class Changed(Message, frozen=True, tag=15):
    """What became of a `Change`, once all processes have heard of it; see `AdapterChanged`."""

    number: int
    refusal: str
    missing: bool


# --- between the engine and its parent --------------------------------------------------------


class Configuration(Message, frozen=True, tag=20):
    """The first word of the parent."""

    engine: EngineConfig
    parent: int  # process id
    address: str  # of the socket; its directory is removed if the parent dies
    log_levels: dict[str, int]  # by logger, "" for the root


class Stop(Message, frozen=True, tag=21):
    """End, after telling whoever is attached."""


class Logged(Message, frozen=True, tag=30):
    """A log record."""

    logger: str
    level: int
    created: float  # time.time() seconds
    text: str
    trace: str | None
    path: str
    line: int
    function: str
    thread: str
    outline: str | None = None  # of the exception that `trace` shows: without its message


class Kept(Message, frozen=True, tag=32):
    """Adapters that were loaded while the model ran: who starts the engine again has it load them again."""

    directories: dict[str, str]  # by name


class Pulse(Message, frozen=True, tag=31):
    """A sign of life, twice a second."""

    step: int | None  # number of the step that is computed; None between steps, and before the first
    served: bool = False  # a token, since it was started


FromApi = Attach | Vocabulary | Submit | Look | Change | Heard | Abort
FromEngine = Progress | Ready | Unavailable | Batch | Edition | Changed
FromParent = Configuration | Stop
FromChild = Logged | Progress | Ready | Unavailable | Kept | Pulse

FROM_API: msgspec.msgpack.Decoder[FromApi] = msgspec.msgpack.Decoder(FromApi)
FROM_ENGINE: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
FROM_PARENT: msgspec.msgpack.Decoder[FromParent] = msgspec.msgpack.Decoder(FromParent)
FROM_CHILD: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)

MIB = 2**20
API_LIMIT = 64 * MIB  # of a frame: the longest prompt, the longest grammar, a vocabulary, or images
ENGINE_LIMIT = 256 * MIB  # the log-probabilities of the longest prompt, with top tokens
CONTROL_LIMIT = MIB
