"""The vocabulary that crosses the engine's boundaries; every type is frozen.

`Request` goes in, a sequence of `Event` comes out, and the last event of a sequence carries its
`Finish`. Below the client, on the way to the engine's own thread, the same things travel as token
ids only: `CoreRequest` in, one `Frame` of `CoreOutput` per step back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from inference.adapters import AdapterChange as AdapterChange
from inference.adapters import AdapterChanged as AdapterChanged
from inference.adapters import AdapterEdition as AdapterEdition
from inference.adapters import place_of
from inference.config import Found
from inference.errors import GrammarRefused, Member
from inference.images import Image as Image
from inference.images import Looked as Looked
from inference.images import VisionInfo as VisionInfo
from inference.prompt_tops import PromptTops
from inference.step_stats import StepStats
from inference.thoughts.types import ThoughtUse
from inference.tools.types import ToolUse

Messages = Sequence[Mapping[str, object]]


class FinishReason(StrEnum):
    """Why a sequence ended, in TGI's words."""

    LENGTH = "length"
    EOS = "eos_token"
    STOP = "stop_sequence"


class LogprobsMode(StrEnum):
    """Which distribution log-probabilities are reported of."""

    RAW = "raw"  # the model's own, before penalties, temperature and filters (OpenAI)
    PROCESSED = "processed"  # after all of them, as the sampler saw it (TGI)
    NONE = "none"  # nobody is told any: what stands in a token's place for its own means nothing


class GrammarKind(StrEnum):
    """In which language a grammar is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"  # llguidance's dialect; the server's own, never a client's


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What the whole generated text must follow."""

    kind: GrammarKind
    source: str  # JSON text of a schema, a regular expression for the whole text, or Lark
    member: str = "grammar"  # of the request, for messages: "parameters.grammar.value"
    left_out: tuple[str, ...] = ()  # members of the request, with keywords of schemas that it doesn't follow
    lead: str = ""  # Lark: `start` and more rules, for text in which this is the rule `answer`
    parts: tuple[Member, ...] = ()  # Lark: whose schemas are in it; labels name them by their places here

    def part(self, label: str) -> Member:
        """Return the member that has the schema with this label: a place, and a property's name behind it."""
        if not label:
            return Member(self.member)
        place, _, name = label.partition(" ")
        part = self.parts[int(place)]
        return replace(part, shown=f"{str(part)[:-1]} {name}`") if name else part


class EngineState(StrEnum):
    """Where the engine stands; only a ready engine admits requests."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """A mark that raises a pseudo-random part of the vocabulary at each token (Kirchenbauer et al. 2023)."""

    gamma: float = 0.5  # share of the vocabulary, (0, 1)
    delta: float = 2.0  # added to its logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is chosen; each field's default switches its stage off."""

    sample: bool = False  # false: the most likely token
    temperature: float = 1.0  # > 0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # (0, 1]
    typical_p: float = 1.0  # (0, 1]
    min_p: float = 0.0  # [0, 1]; share of the likeliest token's probability
    repetition_penalty: float = 1.0  # > 0; over prompt and generated tokens
    frequency_penalty: float = 0.0  # per occurrence among the generated tokens
    presence_penalty: float = 0.0  # once for each token that was generated before
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit), ids in order
    watermark: Watermark | None = None
    seed: int = 0  # uint64, always the effective one


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence to generate from one prompt."""

    id: str
    prompt: str
    prompt_ids: tuple[int, ...] | None = None  # given by the client: what is computed in place of `prompt`
    add_special_tokens: bool = True
    truncate: int | None = None  # keep only the last n prompt tokens
    max_new_tokens: int | None = None  # None: the rest of the context
    min_new_tokens: int = 0  # neither EOS nor a stop sequence ends the text before
    ignore_eos: bool = False  # EOS doesn't end the text, and is a token like any other
    stop: tuple[str, ...] = ()
    tools: ToolUse | None = None  # which its text may call: no stop sequence is looked for within a call
    thoughts: ThoughtUse | None = None  # told apart from its text: none is looked for in them either
    grammar: Grammar | GrammarRefused | None = None  # or why there can't be one, which is told at its turn
    sampling: Sampling = field(default_factory=Sampling)
    logprobs: LogprobsMode = LogprobsMode.PROCESSED
    top_n_tokens: int = 0  # the likeliest told beside each generated token
    prompt_logprobs: bool = False
    prompt_top_n_tokens: int = 0  # the likeliest told beside each token of the prompt
    sequences: int = 1  # of the same body, this one counted: all are held for one answer
    owner: str = ""  # whose it is: owners share the engine evenly
    cache_salt: str = ""  # only requests with the same salt share what the prefix cache holds
    adapter: str | None = None  # by its name; None: the model alone
    images: tuple[Image, ...] = ()  # in the order of their marks in the prompt

    def __post_init__(self) -> None:
        asks = self.top_n_tokens > 0 or self.prompt_logprobs
        assert not (asks and self.logprobs is LogprobsMode.NONE), "whoever asks for log-probabilities is told"
        assert self.prompt_logprobs or not self.prompt_top_n_tokens, "they stand beside the prompt's own"


@dataclass(frozen=True, slots=True)
class Token:
    """A token with the text that it completes."""

    id: int
    text: str  # "" while a multi-byte character is incomplete
    logprob: float  # natural logarithm; -inf where a filter removed it; no meaning with LogprobsMode.NONE
    special: bool


@dataclass(frozen=True, slots=True)
class PromptToken:
    """A token of the prompt; the first one has no log-probability."""

    id: int
    text: str
    logprob: float | None
    top_tokens: Sequence[Token] = ()  # the likeliest at its place, as of generated tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """When a request passed each stage, in seconds of `time.monotonic`."""

    submitted: float  # set by the client when `submit` was called
    queued: float  # set by the client once the prompt was tokenised and accepted
    started: float  # set by the engine with the first step that ran a token of it
    first_token: float  # set by the client with the first event
    finished: float  # set by the client with the last event


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """What is known of a sequence once it has ended."""

    reason: FinishReason  # of `text`: the limit of tokens goes before EOS, and EOS before a stop sequence
    text: str  # all visible text, up to the end of the stop sequence that ended it
    text_before_stop: str  # the same up to the first stop sequence, whatever ended it
    stopped: bool = False  # there is a stop sequence, maybe completed by the last token that was allowed
    cut: str = (
        ""  # the end of the last token's text that isn't in `text`, as it stands behind a stop sequence
    )
    prompt_tokens: int
    generated_tokens: int  # the EOS token counted
    cached_tokens: int  # prompt tokens whose KV was found in the prefix cache
    seed: int | None  # None for a greedy request
    timings: Timings

    @property
    def reason_before_stop(self) -> FinishReason:
        """Return why `text_before_stop` ended: at a stop sequence, if there is one."""
        return FinishReason.STOP if self.stopped else self.reason


@dataclass(frozen=True, slots=True)
class Event:
    """One generated token; exactly one event of a request, its last, has `finish`."""

    index: int  # 1-based
    token: Token
    top_tokens: tuple[Token, ...]  # best first; ties can make it longer than asked for
    delta: str  # visible text released by this token: no special token, no stop sequence
    finish: Finish | None = None
    prompt: Sequence[PromptToken] = ()  # with the first event, if its log-probabilities were asked for


@dataclass(frozen=True, slots=True)
class TextToken:
    """A token of a tokenised text with its place there."""

    id: int
    text: str
    start: int  # UTF-8 byte offset, inclusive
    stop: int  # UTF-8 byte offset, exclusive
    special: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What the loaded model is and what it can hold."""

    id: str
    sha: str | None
    pipeline_tag: str | None
    dtype: str  # e.g. "torch.float32"
    device_type: str  # "cpu", "cuda"
    max_input_tokens: int
    max_total_tokens: int
    max_batch_prefill_tokens: int  # tokens of one step
    max_batch_total_tokens: int  # capacity of the KV cache, in tokens
    level: str  # how much of the engine's fast path serves it
    vocabulary_size: int  # every id below it is one that the model knows: the rows of its embedding
    eos_token_ids: tuple[int, ...]
    deterministic: bool = False  # a token's logits are the same bits alone, in any batch, from the cache
    adapters: Mapping[str, int] = field(default_factory=dict)  # that requests can name, and their numbers
    adapter_commits: Mapping[str, str] = field(default_factory=dict)  # of those from the hub
    quantization: str | None = None  # by which the files were quantised before, and what becomes of it
    step_seconds: float = 0.0  # what the longest step is estimated to take; 0.0: next to nothing
    vision: VisionInfo | None = None  # None: it takes no images
    decoder_start: tuple[int, ...] = ()  # tokens before its texts, of a model whose encoder reads prompts
    max_text_tokens: int | None = None  # that it generates at most, where its prompt takes none of these

    @property
    def found(self) -> Found | None:
        """Return what the hub said of it and its adapters; None if it said nothing."""
        said = self.sha is not None or self.adapter_commits
        return Found(self.sha, self.pipeline_tag, self.adapter_commits) if said else None


# --- below the client: token ids only -------------------------------------------------------


class Matcher(Protocol):
    """One text's way through a grammar; used by one thread at a time."""

    def accept(self, token_id: int) -> bool:
        """Go on by a token; false if the grammar doesn't allow it, or a limit was passed: see `error`."""

    def fill_mask(self, mask: NDArray[np.uint32]) -> None:
        """Write which tokens may come next: one bit each, the lowest first; EOS where the text may end.

        Releases the GIL. Tokens beyond the grammar's vocabulary are not allowed.
        """

    @property
    def finished(self) -> bool:
        """Return whether nothing but EOS can follow."""

    @property
    def error(self) -> str | None:
        """Return why it can't go on: a limit of the work per token was passed."""


class CompiledGrammar(Protocol):
    """A grammar ready for use by any number of requests."""

    def start(self) -> Matcher:
        """Return a matcher at the beginning of a text; cheap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreRequest:
    """A request as the engine's own thread sees it."""

    id: str
    prompt_ids: tuple[int, ...]  # never empty
    max_new_tokens: int  # >= 1, fits the context
    min_new_tokens: int = 0
    ignore_eos: bool = False
    sampling: Sampling
    logprobs: LogprobsMode
    top_n_tokens: int
    prompt_logprobs: bool
    prompt_top_n_tokens: int = 0
    grammar: CompiledGrammar | None = None
    owner: str = ""
    salt: str = ""  # of the prefix cache
    adapter: int = -1  # the number of the model's adapter that computes it; -1: none
    images: int = 0  # of its prompt, which were looked at under its id

    @property
    def place(self) -> int:
        """Return the place of its adapter among those at hand; -1: none."""
        return place_of(self.adapter)


class CoreOutput(Struct, frozen=True, gc=False):  # one for every token: made in a tenth of a dataclass's time
    """One generated token of one request."""

    id: str
    token_id: int
    logprob: float  # any number if the request's are LogprobsMode.NONE
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first
    finish: FinishReason | None = None  # LENGTH or EOS, or STOP at a grammar's end without EOS
    started: float = 0.0  # time.monotonic() of the first step that ran it; read of the first token only,
    cached_tokens: int = 0  # as is this
    prompt_logprobs: tuple[float | None, ...] | None = None  # with the first token only
    prompt_top: PromptTops | None = None  # beside them, if prompt_top_n_tokens > 0


@dataclass(frozen=True, slots=True)
class CoreFailure:
    """The terminal failure of one request; the others go on."""

    id: str
    message: str
    own: bool = False  # the request's own grammar, images or text did it, and says nothing of the engine


@dataclass(frozen=True, slots=True)
class Frame:
    """All that one step has to say."""

    outputs: tuple[CoreOutput | CoreFailure, ...]
    stats: StepStats | None = None
    looked: tuple[Looked, ...] = ()  # of no step
    edition: AdapterEdition | None = None  # of no step either; there if other adapters can be named now
    changed: tuple[AdapterChanged, ...] = ()  # the same
