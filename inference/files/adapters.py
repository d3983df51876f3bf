"""LoRA adapters as they are named and stored: sources, the files of the package peft, and what they say.

An adapter adds `scale * up(down(x))` to what some of the model's linears give (Hu et al. 2021).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from inference.config import ModelConfig
from inference.errors import ModelUnavailable
from inference.files.hub import find_snapshot
from inference.files.model_files import ADAPTER, local_directory, read_object
from inference.files.safetensors import Tensor, read_header

WEIGHTS = "adapter_model.safetensors"
MOST_RANK = 4096
_STACKED = 3  # as q, k and v are one linear there, and each of them has outputs of all: at most so often
_MOST_ALPHA = 1e9
_ALPHA = 8  # peft's own, where the description says nothing
MERGE = "merge it into its model (`merge_and_unload` of the package peft)"
MOST_NAME = 200  # characters
# Without groups, which could repeat so that a match takes for ever; one choice among few places
_PATTERN = re.compile(r"\^?(?:[\w.\-|]|\\.|\.\*|\[\w+\])+\$?")
_MOST_PATTERN, _MOST_STARS = 200, 2
_SOURCE = re.compile(r"(?:(?P<name>[^=@]+)=)?(?P<place>[^=@]+)(?:@(?P<revision>[^=@]+))?")
_TENSOR = re.compile(r"base_model\.model\.(?P<linear>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight")
_FLOATS = ("F32", "F16", "BF16")
# Members that ask for more than low ranks, by what they say where they don't
_MORE: dict[str, tuple[Any, ...]] = {
    "lora_bias": (False,),
    "bias": ("none",),
    "modules_to_save": ([],),
    "target_parameters": ([],),
    "trainable_token_indices": ([], {}),
    "layer_replication": ([],),
    "alora_invocation_tokens": ([],),
}
_HARMLESS = ("use_rslora", "eva_config", "corda_config", "loftq_config", "lora_ga_config")  # or told below
_CHANGES_MODEL = ("pissa", "olora", "corda", "loftq", "lora_ga")  # ways to begin that take from the weights


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """An adapter by the name that requests give, and where its files are."""

    name: str
    place: str  # a directory, or a hub id
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> AdapterSource:
        """Read `org/name`, `name=directory` or `name=org/name`, each with `@revision`, as TGI does."""
        found = _SOURCE.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"must be adapters such as org/name, org/name@revision or name=path, not {text}")
        place = found["place"].strip()
        name = (found["name"] or place).strip()
        if not name.isprintable() or len(name) > MOST_NAME:
            raise ValueError(f"must be adapters with printable names of at most {MOST_NAME} characters")
        return cls(name, place, found["revision"])


def parse_adapters(texts: Iterable[str]) -> tuple[AdapterSource, ...]:
    """Read several; raise ValueError for what isn't one, or a name that several have."""
    sources = tuple(AdapterSource.parse(text) for text in texts)
    names = [source.name for source in sources]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"must be adapters of different names, and several are `{twice}`: give name=path")
    if "tgi" in names:
        raise ValueError("must not name an adapter `tgi`, which stands for the model itself: give name=path")
    return sources


@lru_cache
def adapter_names(texts: tuple[str, ...]) -> frozenset[str]:
    """Return the names by which requests can ask for adapters."""
    return frozenset(source.name for source in parse_adapters(texts))


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter's description and its tensors' headers, which fit each other."""

    name: str
    directory: Path
    scales: dict[str, float]  # by the path of a linear
    tensors: dict[str, tuple[str, str]]  # by the same: the names of `down` (rank, k) and `up` (n, rank)
    numbers: int  # of all tensors
    nbytes: int  # that they take on a CPU
    commit: str | None = None  # the hub's

    def __str__(self) -> str:
        """Return what it is as a line for a person."""
        return f"Adapter {self.name}: low ranks of {len(self.tensors)} linears, {self.numbers:,} numbers"


def find_adapters(config: ModelConfig, progress: Callable[[str], None]) -> tuple[AdapterFiles, ...]:
    """Return the files of a model's adapters, downloaded if they have to be; raise ModelUnavailable."""
    try:
        sources = parse_adapters(config.adapters)
    except ValueError as error:
        raise ModelUnavailable(f"--lora-adapters {error}") from error
    if any(source.name == config.name for source in sources):
        raise refused(config.name, "the model has the same name: give name=path")
    return tuple(_found(source, config, progress) for source in sources)


def held_bytes(adapters: Iterable[AdapterFiles], itemsize: int | None) -> int:
    """Return the memory that adapters take, on a CPU, or on a device with numbers of `itemsize` bytes."""
    if itemsize is None:
        return sum(each.nbytes for each in adapters)
    return sum(each.numbers for each in adapters) * itemsize * _STACKED


def read_files(name: str, directory: Path) -> AdapterFiles:
    """Return what an adapter's files say; raise ModelUnavailable for what isn't low ranks alone."""
    if not (directory / ADAPTER).is_file():
        raise refused(name, f"no `{ADAPTER}` in {directory}")
    if not (directory / WEIGHTS).is_file():
        pickled = any(directory.glob("*.bin"))
        hint = ", only pickled weights, which can run code: convert them" if pickled else ""
        raise refused(name, f"no `{WEIGHTS}` in {directory}{hint}")
    description = read_object(directory / ADAPTER)
    _check_kind(name, description)
    header = read_header(directory / WEIGHTS)
    pairs = _pairs(name, header)
    scales = {linear: _scale(name, linear, header[down], description) for linear, (down, _) in pairs.items()}
    numbers = sum(tensor.count for tensor in header.values())
    # Of `up` there is a second one, in the order in which it is computed with
    nbytes = sum(_bytes(header[down]) + 2 * _bytes(header[up]) for down, up in pairs.values())
    return AdapterFiles(name, directory, scales, pairs, numbers, nbytes)


def _bytes(tensor: Tensor) -> int:
    """Return what a tensor takes on a CPU: bfloat16 stays so, all else becomes float32."""
    return tensor.count * (2 if tensor.dtype == "BF16" else 4)


def refused(name: str, why: str) -> ModelUnavailable:
    """Return the refusal of an adapter."""
    return ModelUnavailable(f"The adapter `{name}` can't be loaded: {why}")


def _found(source: AdapterSource, config: ModelConfig, progress: Callable[[str], None]) -> AdapterFiles:
    try:
        directory = local_directory(source.place)
    except ModelUnavailable as error:
        raise refused(source.name, str(error)) from error
    if directory is not None:
        if source.revision is not None:
            progress(f"The adapter {source.name} is a directory, in which @{source.revision} has no effect")
        return read_files(source.name, directory)
    path = Path(source.place).expanduser()
    if path.is_absolute() or source.place.startswith((".", "~")) or source.place.count("/") != 1:
        raise refused(source.name, f"there is no directory `{path}`; give another, or a hub id (`org/name`)")
    progress(f"Looking for the adapter {source.place} in the hub's cache and on the hub")
    known = {} if config.found is None else config.found.adapters
    try:
        revision = known.get(source.name, source.revision)
        found = find_snapshot(source.place, revision, config, [ADAPTER, WEIGHTS], progress=progress)
    except ModelUnavailable as error:
        raise refused(source.name, str(error)) from error
    return replace(read_files(source.name, found), commit=found.name)  # by which a snapshot's folder is named


def _check_kind(name: str, description: dict[str, Any]) -> None:
    kind = description.get("peft_type")
    if kind != "LORA":
        raise refused(name, f"its `peft_type` is {_shown(kind)}, and only LORA is served: {MERGE}")
    for member, value in description.items():
        wider = member in _MORE or member.startswith("use_") or member.endswith("_config")
        neutral = _MORE.get(member, (False, {}))
        if wider and member not in _HARMLESS and value is not None and value not in neutral:
            more = "which asks for more than low ranks of linears"
            raise refused(name, f"its `{member}` is {_shown(value)}, {more}: {MERGE}")
    begun = description.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(_CHANGES_MODEL):
        raise refused(
            name,
            f"it was begun by {_shown(begun)}, which changes the model's own weights: convert it "
            "(`path_initial_model_for_weight_conversion` of the package peft)",
        )


def _pairs(name: str, header: dict[str, Tensor]) -> dict[str, tuple[str, str]]:
    """Return both tensors of each linear, whose shapes fit each other."""
    sides: dict[str, dict[str, str]] = {}
    for tensor in header:
        found = _TENSOR.fullmatch(tensor)
        if found is None:
            of = next((each for each in ("embed", "lm_head", "wte") if each in tensor), "")
            why = ", but what it trained of the embedding or the head" if of else ""
            raise refused(name, f"its tensor {_shown(tensor)} is no low rank of a linear{why}: {MERGE}")
        pair = sides.setdefault(found["linear"], {})
        if found["side"] in pair:
            raise refused(name, f"`{found['linear']}` has two of `lora_{found['side']}`: it is damaged")
        pair[found["side"]] = tensor
    if not sides:
        raise refused(name, f"its `{WEIGHTS}` is empty")
    for linear, pair in sides.items():
        _check_pair(name, linear, [header[pair[side]] for side in "AB" if side in pair])
    return {linear: (pair["A"], pair["B"]) for linear, pair in sides.items()}


def _check_pair(name: str, linear: str, pair: list[Tensor]) -> None:
    down, up = [each.shape for each in pair] if len(pair) == 2 else ((), ())
    fits = len(down) == len(up) == 2 and down[0] == up[1] and 0 < down[0] <= MOST_RANK
    if not fits or not all(each.dtype in _FLOATS for each in pair):
        shown = " and ".join(f"{each.shape} in {each.dtype}" for each in pair)
        raise refused(
            name,
            f"`lora_A` and `lora_B` of `{linear}` are {shown}; they must be (rank, k) and (n, rank), "
            f"ranks up to {MOST_RANK}, in 16 or 32 bits",
        )


def _scale(name: str, linear: str, down: Tensor, description: dict[str, Any]) -> float:
    """Return alpha / rank, or alpha / sqrt(rank) (rsLoRA, Kalajdzievski 2023), by the linear's own alpha."""
    patterns = description.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise refused(name, f"its `alpha_pattern` is {_shown(patterns)}, and must be an object")
    own = next((each for key, each in patterns.items() if _names(name, key, linear)), None)
    alpha = description.get("lora_alpha", _ALPHA) if own is None else own
    number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
    if not number or not abs(alpha) <= _MOST_ALPHA:  # NaN is not, either
        raise refused(
            name, f"its `lora_alpha` is {_shown(alpha)}, and must be a number up to {_MOST_ALPHA:g}"
        )
    rank = down.shape[0]
    return float(alpha / (math.sqrt(rank) if description.get("use_rslora") else rank))


def _names(name: str, pattern: str, linear: str) -> bool:
    """Return whether a key of `alpha_pattern` is for a linear: the end of its path, or an expression."""
    simple = len(pattern) <= _MOST_PATTERN and pattern.count("*") <= _MOST_STARS
    try:
        if simple and _PATTERN.fullmatch(pattern):
            return re.fullmatch(rf"(.*\.)?({pattern})", linear) is not None
    except re.error:
        pass  # it is told below
    raise refused(
        name,
        f"its `alpha_pattern` has {_shown(pattern)}: keys must be ends of paths, or expressions of "
        f"characters, classes, `|` and at most {_MOST_STARS} `.*`, of {_MOST_PATTERN} characters at most",
    )


def _shown(value: object) -> str:
    return f"{json.dumps(value, default=str)[:100]}"
