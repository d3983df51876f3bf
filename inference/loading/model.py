"""transformers' models: loaded, described, and brought to the fastest level that is exact."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils import GENERATION_CONFIG_NAME
from transformers.utils import logging as transformers_logging

from inference.config import ModelConfig
from inference.errors import ModelUnavailable
from inference.files.checkpoint import Checkpoint, Weights
from inference.files.model_files import ADAPTER, safetensors_files
from inference.loading.classes import classes_of_text, model_class, numberless, own_config, stored_dtypes
from inference.loading.keeping import KeptWeights, keep
from inference.loading.obstacles import check_experts, check_loaded, unavailable
from inference.loading.own_code import runs_code
from inference.models.quantised_experts import without_experts
from inference.models.weights import loading_class, make_plain, widen
from inference.planning.precision import DTYPES, rounded_dtype
from inference.quantised.method import ORIGINAL, read_method
from inference.quantised.stored import Kept, expanded
from inference.shortage import is_shortage

_ADVICE = "transformers.integrations.hub_kernels"  # who gives it
# Beneath a file nothing is found: transformers would apply an adapter that lies beside the model
_NO_ADAPTER = {"subfolder": ADAPTER}

LOG = logging.getLogger(__name__)


def choose_device(config: ModelConfig, progress: Callable[[str], None]) -> torch.device:
    """Return the device to compute on; raise ModelUnavailable if the one asked for isn't there."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ModelUnavailable("torch finds no CUDA device, which --device cuda asks for; use --device cpu")
    on_gpu = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
    if on_gpu and torch.cuda.device_count() > 1:
        progress(
            f"{torch.cuda.device_count()} GPUs are there, of which the first is used: a model isn't split; "
            f"one server for each, with its own CUDA_VISIBLE_DEVICES, uses all"
        )
    return torch.device("cuda" if on_gpu else "cpu")


def choose_dtype(config: ModelConfig, model: PreTrainedConfig, device: torch.device) -> torch.dtype:
    """Return the dtype to compute in.

    On CPU that is float32 whatever the files hold: widening 16 bits is exact. There, --dtype says
    what the weights of linears are rounded to.
    """
    if device.type == "cpu":
        return torch.float32
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    stored = getattr(model, "dtype", None)
    return stored if stored in (torch.float16, torch.bfloat16) else torch.bfloat16


def read_config(checkpoint: Checkpoint, config: ModelConfig) -> PreTrainedConfig:
    """Return transformers' configuration of the model; raise ModelUnavailable if it has none.

    It doesn't say how files were quantised: the model is given their weights as if they weren't. It is
    transformers' own unless the model's code is run.
    """
    read_method(checkpoint.path)  # transformers goes on without those weights where it doesn't know it
    runs = runs_code(checkpoint.path, config)
    try:
        found: PreTrainedConfig = AutoConfig.from_pretrained(checkpoint.path, trust_remote_code=runs)
    except Exception as error:  # what values of the wrong type lead to can be anything
        raise unavailable(config.name, checkpoint.path, error) from error
    for each in (found, found.get_text_config()):
        vars(each).pop("quantization_config", None)
    if config.trust_remote_code and not runs and getattr(found, "auto_map", None):
        LOG.info("The code of `%s` isn't run: transformers has its architecture", config.name)
    return found


def load_model(
    checkpoint: Checkpoint,
    config: ModelConfig,
    described: PreTrainedConfig,
    weights: Weights,
    device: torch.device,
    progress: Callable[[str], None],
    kept: KeptWeights = KeptWeights(),  # noqa: B008 - frozen
) -> PreTrainedModel:
    """Return the model with its weights on `device`, attention still transformers' own ("eager").

    On CPU its linears, embeddings and experts are what is stored, and it computes in float32. `kept`: linears
    that compute with few bits.
    """
    started = time.monotonic()
    if not sys.stderr.isatty():  # a bar is for a person; in a log it is noise
        transformers_logging.disable_progress_bar()
    dtype = choose_dtype(config, described, device)
    rounded = None if kept.rounding else rounded_dtype(config)  # or all were in memory before the first is
    loader, described = _loader(described, config, weights, device, rounded)
    if device.type == "cpu":
        logging.getLogger(_ADVICE).addFilter(_is_no_advice)
    model: PreTrainedModel
    try:
        kept_as = rounded_dtype(config) if device.type == "cpu" else dtype
        if kept.experts.places:
            loader = without_experts(loader, list(kept.experts.places))
        with _files(checkpoint, config, described, weights, loader, kept, kept_as) as (files, in_few):
            model, loaded = loader.from_pretrained(
                **files,
                config=described,
                dtype=dtype,
                attn_implementation="eager",
                ignore_mismatched_sizes=True,  # so that they are told of, and refused below
                output_loading_info=True,
            )
            make_plain(model)
            keep(model, kept, in_few, dtype)
    except ModelUnavailable:  # of a quantised weight, as it is expanded
        raise
    except Exception as error:  # what values of the wrong type lead to can be anything
        if device.type != "cpu" and is_shortage(error):
            raise  # told elsewhere, with what is free
        _check_experts(checkpoint, config, described, weights)
        raise unavailable(config.name, checkpoint.path, error) from error
    if loaded["missing_keys"] or loaded["mismatched_keys"]:
        _check_experts(checkpoint, config, described, weights)
    check_loaded(config.name, model, loaded)
    if weights.stored is not None and (checkpoint.path / GENERATION_CONFIG_NAME).is_file():
        model.generation_config = GenerationConfig.from_pretrained(checkpoint.path)  # read with files alone
    model.to(device).eval().requires_grad_(False)
    if device.type == "cpu":
        widen(model)
    progress(f"Loaded {type(model).__name__} in {time.monotonic() - started:.1f} s")
    return model


def _check_experts(
    checkpoint: Checkpoint, config: ModelConfig, described: PreTrainedConfig, weights: Weights
) -> None:
    """Raise ModelUnavailable if files lack some experts' weights, for which a model can't be loaded."""
    own = model_class(described)
    if own is None:
        return
    try:
        model = numberless(own, described)
    except Exception:  # which is why it couldn't be loaded, then
        return
    check_experts(config.name, checkpoint.path, model, weights.dtypes)


def _is_no_advice(record: logging.LogRecord) -> bool:
    """Return whether a record doesn't say which packages would be faster: they are, but on GPUs alone."""
    return "is falling back to its reference PyTorch implementation" not in record.getMessage()


@contextmanager
def _files(
    checkpoint: Checkpoint,
    config: ModelConfig,
    described: PreTrainedConfig,
    weights: Weights,
    loader: Any,
    kept: KeptWeights,
    kept_as: torch.dtype | None,
) -> Iterator[tuple[dict[str, Any], dict[str, Kept]]]:
    """Have what tells a loader of the files, or gives it what they hold where that is quantised.

    Beside it: what of the latter stays in few bits.
    """
    if weights.stored is not None:
        files = safetensors_files(checkpoint.path)
        turned = _turned_weights(loader, described)
        places = () if kept.rounding else kept.places
        with expanded(weights.stored, files, turned, places, kept_as, kept.experts.names) as (
            tensors,
            in_few,
        ):
            yield {"pretrained_model_name_or_path": None, "state_dict": tensors}, in_few
        return
    remote = {}
    if loader is AutoModelForCausalLM:
        remote["trust_remote_code"] = runs_code(checkpoint.path, config)
    given = {
        "pretrained_model_name_or_path": checkpoint.path,
        "use_safetensors": None if config.trust_remote_code else True,
        "adapter_kwargs": _NO_ADAPTER,
        **remote,
    }
    yield given, {}


def _turned_weights(model_class: type[PreTrainedModel], described: PreTrainedConfig) -> list[str]:
    """Return the names of the weights that a model has as (in, out), as GPT-2 does."""
    with torch.device("meta"):
        model = model_class._from_config(described)
    return [f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Conv1D)]


def _loader(
    described: PreTrainedConfig,
    config: ModelConfig,
    weights: Weights,
    device: torch.device,
    rounded: torch.dtype | None,
) -> tuple[Any, PreTrainedConfig]:
    """Return the class that loads the model, and the configuration that it takes.

    On CPU, where the model's class is transformers' own, that is a subclass that keeps what is stored.
    """
    own = model_class(described)
    if own is None and weights.stored is not None:
        raise ModelUnavailable(
            f"`{config.name}` is quantised ({weights.stored}), and brings its own code, which can't be given "
            f"the weights that these make: {ORIGINAL}"
        )
    if own is not None and weights.stored is not None and device.type != "cpu":
        return own, own_config(own, described)
    if own is None or device.type != "cpu":
        speaks = own is None or own in classes_of_text(MODEL_FOR_CAUSAL_LM_MAPPING.get(type(described), ()))
        return AutoModelForCausalLM if speaks else own, described
    return loading_class(own, stored_dtypes(weights), rounded), own_config(own, described)


def vocabulary_size(model: PreTrainedModel) -> int:
    """Return how many token ids the model takes: it can be padded, so more than its tokenizer has."""
    rows: int = model.get_input_embeddings().weight.shape[0]
    return rows
