"""transformers' models: loaded, described, and brought to the fastest level that is exact."""

from __future__ import annotations

import inspect
import logging
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
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
from inference.loading.keeping import KeptLinears, keep, rounded_linears, stored_linears
from inference.loading.obstacles import check_loaded, unavailable
from inference.loading.own_code import runs_code
from inference.models.quantised_experts import without_experts
from inference.models.weights import NARROW, expert_weights, kept_kinds, loading_class, make_plain, widen
from inference.planning.precision import DTYPES, rounded_dtype
from inference.quantised.method import ORIGINAL, read_method
from inference.quantised.stored import Kept, expanded
from inference.shortage import is_shortage

_ADVICE = "transformers.integrations.hub_kernels"  # who gives it
_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
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
    kept: KeptLinears = KeptLinears(),  # noqa: B008 - frozen
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
        raise unavailable(config.name, checkpoint.path, error) from error
    check_loaded(config.name, model, loaded)
    if weights.stored is not None and (checkpoint.path / GENERATION_CONFIG_NAME).is_file():
        model.generation_config = GenerationConfig.from_pretrained(checkpoint.path)  # read with files alone
    model.to(device).eval().requires_grad_(False)
    if device.type == "cpu":
        widen(model)
    progress(f"Loaded {type(model).__name__} in {time.monotonic() - started:.1f} s")
    return model


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
    kept: KeptLinears,
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
    own = _model_class(described)
    if own is None and weights.stored is not None:
        raise ModelUnavailable(
            f"`{config.name}` is quantised ({weights.stored}), and brings its own code, which can't be given "
            f"the weights that these make: {ORIGINAL}"
        )
    if own is not None and weights.stored is not None and device.type != "cpu":
        return own, _own_config(own, described)
    if own is None or device.type != "cpu":
        speaks = own is None or own in _classes(MODEL_FOR_CAUSAL_LM_MAPPING.get(type(described), ()))
        return AutoModelForCausalLM if speaks else own, described
    return loading_class(own, _stored(weights), rounded), _own_config(own, described)


def _stored(weights: Weights) -> dict[str, torch.dtype]:
    return {name: DTYPES[dtype] for name, dtype in weights.dtypes.items()}


def _model_class(described: PreTrainedConfig) -> type[PreTrainedModel] | None:
    """Return transformers' own class for a configuration; None if the model brings its code.

    Of a model that sees, that is the class for images and text, unless it can't do without images. Of one
    with an encoder it is the one that its files name: some families have a class of the decoder alone, too.
    """
    whole = described.is_encoder_decoder
    other = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING if whole else MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    mappings = (MODEL_FOR_CAUSAL_LM_MAPPING, other)
    found = [_classes(mapping[type(described)]) for mapping in mappings if type(described) in mapping]
    several = list(chain(*(found if whole else found[:1])))
    named = [each for each in several if each.__name__ in (described.architectures or ())]
    return next(iter(named + several), None)


def _classes(found: Any) -> list[type[PreTrainedModel]]:
    """Return those of a family's classes that compute the next token of text alone."""
    several = found if isinstance(found, tuple | list) else (found,)
    return [each for each in several if _takes_text(each)]


def _takes_text(model_class: type[PreTrainedModel]) -> bool:
    """Return whether a class computes the next token of text alone, as far as its signature says."""
    takes = inspect.signature(model_class.forward).parameters
    others = [each for each in list(takes.values())[1:] if each.name != "input_ids"]
    required = [each for each in others if each.default is each.empty and each.kind not in _REST]
    drafts = "self_conditioning_logits" in takes  # of a whole block, which diffusion refines
    return "input_ids" in takes and not required and not drafts


def _own_config(model_class: type[PreTrainedModel], described: PreTrainedConfig) -> PreTrainedConfig:
    """Return the configuration that a class takes: of a model of several parts it may be that for text."""
    part = described.sub_configs.get("text_config")
    return described.get_text_config() if part and model_class.config_class is part else described


def kept_weights(
    described: PreTrainedConfig,
    weights: Weights,
    rounding: str | None,
    bits: Collection[int],
    *,
    experts: bool,
) -> KeptLinears:
    """Return which linears compute with few bits: as the files have them, in these, or by `rounding`.

    `experts`: of the files' weights mixtures' experts may, too.
    """
    own = _model_class(described)
    stored = weights.stored
    if own is None or described.is_encoder_decoder:
        return KeptLinears()
    try:
        model = _numberless(own, described)
        if rounding is not None:
            return rounded_linears(model, rounding)
        return KeptLinears() if stored is None else stored_linears(model, stored, bits, experts=experts)
    except Exception:  # it will fail again as the model is loaded, and be told then
        return KeptLinears()


def _numberless(own: type[PreTrainedModel], described: PreTrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        return own._from_config(_own_config(own, described))


def held_weights(described: PreTrainedConfig, weights: Weights, device: torch.device) -> Weights:
    """Return how many numbers the model will hold, and how many of them in what is kept as it is stored.

    Files may have them in another form: experts as matrices, of which the model makes one tensor before
    it is packed. Of files in 16 bits for the most part, matrices in 32 count as all else, as they are kept
    so, and so do experts in 32 bits, always.
    """
    own = _model_class(described)
    if own is None or device.type != "cpu":
        return weights
    try:
        model = _numberless(own, described)
        make_plain(model)
        kinds = kept_kinds(model, _stored(weights))
    except Exception:  # it will fail again as the model is loaded, and be told then
        return weights
    sizes = {id(each): each.numel() for each in model.parameters()}  # each once, where several are tied
    of_experts = {id(getattr(*each)) for each in kinds if expert_weights(each[0])}
    narrow = {id(getattr(*each)) for each, kind in kinds.items() if kind in NARROW}
    linears = {id(getattr(*each)) for each in kinds} - of_experts
    # A weight that is computed of others, as by weight_norm, is none of the parameters
    experts = sum(sizes.get(each, 0) for each in of_experts & narrow)
    counted = linears & narrow if weights.narrow else linears
    tables = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
    head = model.get_output_embeddings()
    return replace(
        weights,
        floats=sum(sizes.values()),
        matrices=sum(sizes.get(each, 0) for each in counted) + experts,
        experts=experts,
        kept=sum(sizes.get(each, 0) for each in counted & (tables | _beside_text(model))),
        kept_heads=sum(sizes.get(each, 0) for each in tables & {id(getattr(head, "weight", None))}),
    )


def _beside_text(model: PreTrainedModel) -> set[int]:
    """Return the ids of the weights by which a model sees or hears, which stay as they are at level fused."""
    if model.config.get_text_config() is model.config or model.config.is_encoder_decoder:
        return set()
    parts = (model.get_decoder(), model.get_output_embeddings())
    of_text = {id(each) for part in parts if part is not None for each in part.parameters()}
    return {id(each) for each in model.parameters()} - of_text


def has_own_code(described: PreTrainedConfig) -> bool:
    """Return whether a model is computed by code that it brings."""
    return _model_class(described) is None


def vocabulary_size(model: PreTrainedModel) -> int:
    """Return how many token ids the model takes: it can be padded, so more than its tokenizer has."""
    rows: int = model.get_input_embeddings().weight.shape[0]
    return rows
