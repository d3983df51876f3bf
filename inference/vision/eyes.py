"""The part of a model that sees: its own code makes of an image the rows that its layers are given.

The model's forward is run on a prompt of one image, and ended before the first decoder layer: what that
would have been given in the image's places is kept. What others compute meanwhile by the same modules, on
another thread, isn't touched.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.models.trace import decoder_layers
from inference.sequences.sight import CannotSee, ImageRows

if TYPE_CHECKING:
    from inference.vision.processor import Prepared  # and with it Pillow, which text doesn't need

# What any language model is given
_PLAIN = ("inputs_embeds", "position_ids", "attention_mask", "cache_position")
_IMAGES = ("image_grid_thw",)  # what positions depend on


class _Seen(Exception):
    """Everything that is wanted of a forward has been computed."""


@dataclass(slots=True)
class _Look:
    """What the forward of a thread has shown so far."""

    embedded: Tensor | None = None  # (1, tokens, hidden): what the language model was given
    others: tuple[str, ...] = ()  # what it was given besides


class Eyes:
    """A model's images; for one thread at a time."""

    def __init__(self, model: PreTrainedModel, attentions: Sequence[nn.Module], row_id: int) -> None:
        """`attentions`: what attends, or keeps a state, in each decoder layer. Raises CannotSee."""
        self._model = model
        self._row_id = row_id
        self.two_way = False  # whether an image's tokens see those behind them; set by `Vision`
        self._looks = threading.local()
        layers = decoder_layers(model, list(attentions))
        if not layers:
            raise CannotSee("its layers aren't one list")
        self.language_model = _holder(model, layers)
        self._spatial = _positions_maker(model)
        self.language_model.register_forward_pre_hook(self._note_embedded, with_kwargs=True)
        layers[0].register_forward_pre_hook(self._note_given, with_kwargs=True)

    @property
    def spatial(self) -> bool:
        """Return whether images have places in two directions."""
        return self._spatial is not None

    @torch.inference_mode()
    def look(self, prepared: Prepared) -> ImageRows:
        """Return an image's rows; raise CannotSee, or whatever the model's code does."""
        look = self._looks.now = _Look()
        inputs = on_device(self._model, prepared.inputs)
        try:
            self._model(**inputs, use_cache=False)
        except _Seen as seen:
            given: Tensor = seen.args[0]
        else:
            raise CannotSee("its first layer isn't called")
        finally:
            self._looks.now = None
            forget(self._model)
        if look.embedded is None:
            raise CannotSee("its language model isn't given embeddings")
        if look.others:
            raise CannotSee(f"its language model is given {', '.join(look.others)} besides embeddings")
        at = inputs["input_ids"][0] == self._row_id
        rows, embedded = (each[0][at].float().cpu().contiguous() for each in (given, look.embedded))
        layout = {name: prepared.inputs[name] for name in _IMAGES if name in prepared.inputs}
        return ImageRows(rows, rows if torch.equal(rows, embedded) else embedded, layout)

    @contextmanager
    def giving(self, rows: tuple[Tensor, Tensor] | None) -> Iterator[None]:
        """Have the language model given rows (k, hidden) in these places (k,), when this thread runs it."""
        self._looks.step = rows
        try:
            yield
        finally:
            self._looks.step = None

    def positions(self, ids: NDArray[np.int64], images: Sequence[ImageRows]) -> NDArray[np.int64] | None:
        """Return the rotary positions (3, tokens) of a prompt; None if they are 0, 1, ...."""
        if self._spatial is None:
            return None
        prompt = torch.from_numpy(ids)[None]
        layout = {name: torch.cat([each.layout[name] for each in images]) for name in images[0].layout}
        found, _ = self._spatial(
            input_ids=prompt, mm_token_type_ids=(prompt == self._row_id).int(), attention_mask=None, **layout
        )
        positions: NDArray[np.int64] = found[:, 0].cpu().numpy()
        return positions

    def rest_embedding(self) -> None:
        """Have the model's own embedding, whose weight may be packed elsewhere, say nothing but zeros.

        For levels at which nobody else asks it: of an image's prompt only the image's rows are of use.
        """
        self._model.set_input_embeddings(_Zeros(self._model))

    def _note_embedded(self, _: nn.Module, arguments: tuple[Any, ...], given: dict[str, Any]) -> Any:
        look, step = (getattr(self._looks, name, None) for name in ("now", "step"))
        if look is not None:
            look.embedded = given.get("inputs_embeds")
            look.others = tuple(sorted(_others(given)))
        if step is None:
            return None
        at, rows = step
        embedded = given["inputs_embeds"].clone()
        embedded[0, at.to(embedded.device)] = rows.to(embedded)
        return arguments, {**given, "inputs_embeds": embedded}

    def _note_given(self, _: nn.Module, arguments: tuple[Any, ...], given: dict[str, Any]) -> None:
        if getattr(self._looks, "now", None) is not None:
            raise _Seen(arguments[0] if arguments else given["hidden_states"])


def on_device(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's inputs where it is, numbers of pixels in what it computes in there."""
    wide = model.device.type == "cpu"  # whatever its weights are kept in
    dtypes = (None if wide or not each.is_floating_point() else model.dtype for each in inputs.values())
    return {
        name: value.to(device=model.device, dtype=dtype)
        for (name, value), dtype in zip(inputs.items(), dtypes, strict=True)
    }


def forget(model: nn.Module) -> None:
    """Have a model forget what it keeps of the last images, which it would take for a text's own."""
    for module in model.modules():
        if getattr(module, "rope_deltas", None) is not None:
            module.rope_deltas = None


class _Zeros(nn.Module):
    """Stands for an embedding that nobody needs."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self._hidden = model.config.get_text_config().hidden_size
        self._like = {"dtype": torch.float32, "device": model.device}

    def forward(self, ids: Tensor) -> Tensor:
        """Return zeros, (*ids.shape, hidden)."""
        return torch.zeros(*ids.shape, self._hidden, **self._like)


def _holder(model: PreTrainedModel, layers: list[nn.Module]) -> nn.Module:
    """Return the module in whose list the layers are: the language model."""
    path = next(path for path, module in model.named_modules() if module is layers[0])
    return model.get_submodule(path.rsplit(".", 2)[0])


def _positions_maker(model: PreTrainedModel) -> Any:
    """Return the model's own code for positions in two directions; None if it has none."""
    found = (getattr(module, "get_rope_index", None) for module in model.modules())
    maker = next((each for each in found if each is not None), None)
    if maker is None:
        return None
    takes = set(inspect.signature(maker).parameters)
    if not {"input_ids", "mm_token_type_ids", *_IMAGES} <= takes:
        raise CannotSee("its positions depend on more than the images' sizes")
    return maker


def _others(given: dict[str, Any]) -> list[str]:
    """Return the names of tensors that a language model is given besides what any is."""
    return [
        name
        for name, value in given.items()
        if name not in _PLAIN
        and (isinstance(value, Tensor) or (isinstance(value, list | tuple) and len(value)))
    ]
