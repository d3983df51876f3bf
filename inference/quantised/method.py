"""By what a model's files were quantised, as its descriptions say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.errors import ModelUnavailable
from inference.files.model_files import CONFIG, read_object
from inference.files.safetensors import Tensor

ORIGINAL = "give the model that it was made of (--quantize int8 has this server round it on CPU)"
READ = (
    *("gptq", "awq", "fp8", "fbgemm_fp8", "mxfp8", "compressed-tensors", "bitsandbytes", "mxfp4", "modelopt"),
)
# Of tools before config.json had it
_BESIDE = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
NARROW = ("I8", "U8", "I16", "I32")
NARROW_FLOATS = ("F8", "F4", "F6")  # what their names begin with
_LARGEST_GROUP = 2**24


@dataclass(frozen=True, slots=True)
class Method:
    """How a model's files were quantised."""

    name: str  # one of READ
    settings: Mapping[str, Any]  # the object that says so, as it stands
    said: str  # for a person

    def number(self, *names: str, default: int, least: int = 1) -> int:
        """Return a member of the object by any of its names; raise ModelUnavailable if it can't be."""
        given = next((self.settings[name] for name in names if self.settings.get(name) is not None), default)
        if type(given) is not int or not least <= given <= _LARGEST_GROUP:
            raise ModelUnavailable(
                f"The model is quantised ({self.name}), and config.json says that `{names[0]}` is "
                f"{given!r:.40}, which must be a whole number of at least {least}: the file is damaged"
            )
        return given

    def word(self, *names: str, default: str = "") -> str:
        """Return a member that is a word, in lower case."""
        return str(next((self.settings[each] for each in names if self.settings.get(each)), default)).lower()

    def variant(self, what: str) -> ModelUnavailable:
        """Return the refusal of a variant that can't be read."""
        return ModelUnavailable(
            f"The model is quantised by {self.name}, {what:.200} can't be read: {ORIGINAL}"
        )


def read_method(directory: Path) -> Method | None:
    """Return by what a model's files were quantised, None if they weren't; raise ModelUnavailable.

    That is if it isn't known, or can't be read: a library would go on, without the weights.
    """
    settings = _settings(_config(directory))
    if settings is None:
        return _beside(directory)
    name = _name(settings)
    if name not in READ:
        raise ModelUnavailable(
            f"The model is quantised by a method that isn't known: {directory / CONFIG} says that "
            f"`quant_method` of `quantization_config` is {name[:80]!r}, and {', '.join(READ)} can be "
            f"read: {ORIGINAL}"
        )
    return Method(name, settings, _said(name, settings))


def check_plain(tensors: Mapping[str, Tensor]) -> None:
    """Raise ModelUnavailable if files that no method explains hold weights in less than 16 bits.

    A library would take their numbers as they are, and leave out the scales beside them.
    """
    for name, tensor in tensors.items():
        is_weight = len(tensor.shape) > 1 and name.endswith("weight")
        if tensor.dtype.startswith(NARROW_FLOATS) or (is_weight and tensor.dtype in NARROW):
            raise ModelUnavailable(
                f"The model's files have `{name}` in {tensor.dtype}, and nothing says how it was quantised: "
                f"config.json has no `quantization_config`: {ORIGINAL}"
            )


def held_dtype(directory: Path) -> str | None:
    """Return the 16 bits that a model's configuration says, as safetensors calls them; None if it doesn't."""
    config = _config(directory)
    texts = [each for each in (config, config.get("text_config")) if isinstance(each, dict)]
    said = [each.get(name) for each in texts for name in ("dtype", "torch_dtype")]
    known = {"float16": "F16", "bfloat16": "BF16"}
    return next((known[each] for each in said if isinstance(each, str) and each in known), None)


def _config(directory: Path) -> dict[str, Any]:
    """Return a model's configuration, {} if it has none, which who needs one refuses."""
    return read_object(directory / CONFIG) if (directory / CONFIG).is_file() else {}


def _settings(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    text = config.get("text_config")
    for each in (config, text if isinstance(text, dict) else {}):
        for name in ("quantization_config", "compression_config"):
            found = each.get(name)
            if isinstance(found, dict):
                return (
                    found
                    if name == "quantization_config"
                    else {"quant_method": "compressed-tensors", **found}
                )
            if found is not None:
                raise ModelUnavailable(f"`{name}` of config.json must be an object, not {found!r:.60}")
    return None


def _name(settings: Mapping[str, Any]) -> str:
    name = str(settings.get("quant_method") or "").lower()
    if settings.get("load_in_4bit") or settings.get("load_in_8bit"):
        return "bitsandbytes"
    if name in ("auto-round", "auto_round", "intel/auto-round"):
        packed = str(settings.get("packing_format") or settings.get("backend") or "").lower()
        return "awq" if "awq" in packed else "gptq" if "gptq" in packed else name
    return name


def _beside(directory: Path) -> Method | None:
    """Return the method that a file beside config.json tells of, as tools wrote it before."""
    for file, name in _BESIDE.items():
        if (directory / file).is_file():
            settings = read_object(directory / file)
            inner = settings.get("quantization")
            settings = inner if name == "modelopt" and isinstance(inner, dict) else settings
            return Method(name, settings, _said(name, settings))
    return None


def _said(name: str, settings: Mapping[str, Any]) -> str:
    bits = settings.get("bits") or settings.get("w_bit")
    if name == "bitsandbytes":
        bits = 4 if settings.get("load_in_4bit") else 8
    parts = [name, str(settings.get("format") or "") if name == "compressed-tensors" else ""]
    parts.append(f"{bits} bits" if type(bits) is int else "")
    return ", ".join(filter(None, parts))[:80]
