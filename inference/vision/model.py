"""Whether a model that sees can be shown images, and what it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, PreTrainedConfig, PreTrainedModel

from inference.config import ModelConfig
from inference.cpu.runner import Head, PagedRunner
from inference.errors import ModelUnavailable, TemplateFailed
from inference.kv_cache.blocks import blocks_for
from inference.levels.in_float32 import in_float32
from inference.levels.packable import PackableLayers
from inference.levels.proof import Proof, Verdict, is_small, scored_request
from inference.levels.served import Level, MakeRunner, Served
from inference.models.attending import uninstall
from inference.models.paged import PagedCache, Probed
from inference.models.trace import eager_attention
from inference.models.weights import NARROW, asking_for_weights
from inference.sequences.sight import CannotSee, ImageRows, Sight
from inference.sequences.state import Chunk, Decodes, Integers, SlotTable, pack
from inference.sequences.state import Sequence as Text
from inference.shortage import is_shortage
from inference.text.chat_template import load_chat_template
from inference.text.files import ModelFiles
from inference.types import VisionInfo
from inference.vision.eyes import Eyes, forget, on_device
from inference.vision.sample import Sample

if TYPE_CHECKING:
    from inference.vision.processor import Prepared, Processor

_SAME_CODE = 1e-3  # of the logits' norm: the model's own code makes the same of the same in any dtype
# What tells a model's code which tokens are of images, and so may see those behind them
_TYPES = ("token_type_ids", "mm_token_type_ids")
# Of the proof's prompt
_BEFORE, _BETWEEN, _BEHIND = "What is in ", " and in ", " is to be told in a few words"


class Vision:
    """A model's images; `reason` says why they are refused, "" if they aren't."""

    def __init__(
        self,
        model: PreTrainedModel,
        path: Path,
        described: PreTrainedConfig,
        positions: int,
        reason: str = "",
    ) -> None:
        """Ask the model's own code about a prompt with images, before anything of it is changed.

        `positions`: how many there can be. With a `reason` nothing is asked.
        """
        self.reason = reason
        self.eyes: Eyes | None = None  # set by `begin`
        self.most = 0  # images of one prompt; 0: any number
        self._sample: Sample | None = None  # until it is proven
        self._model = model
        self._positions = positions
        if reason:
            return
        try:
            self.processor = _processor(path, described)
            self._sample = self._ask()
        except CannotSee as error:
            self.refuse(str(error))
        except Exception as error:  # any model's code may fail in any way on an image
            if is_shortage(error):
                raise  # told elsewhere, with what is free
            self.refuse(f"its own code fails on an image ({type(error).__name__}: {error})")

    def refuse(self, reason: str) -> None:
        """Have images refused; the first reason stays."""
        self.reason = self.reason or reason

    def begin(self, layers: PackableLayers, proof: Proof, *, rounds: bool, device: bool = False) -> None:
        """Find what sees, by the attention modules of the layers that text comes through.

        With `rounds` the model will be rounded, and its logits hide how images' tokens attend to each other:
        so it is asked before whether it makes the same of rows that it is given. So is one whose code is told
        which tokens are images': whether they see those behind them. `device`: by what GPUs do.
        """
        if self.reason or self._sample is None:
            return
        try:
            self.eyes = Eyes(self._model, layers.pasts(self._model), self.processor.row_id)
            if device and self.eyes.spatial:
                self.refuse("positions in images are computed on CPUs alone so far: --device cpu")
            elif rounds or self._sample.types:
                with eager_attention(self._model):
                    images = [self.eyes.look(each) for each in self._sample.images]
                    self._ask_by_rows(self.eyes, self._sample, images, proof, rounds=rounds)
            if device and self.eyes.two_way:
                self.refuse("its images' tokens see those behind them on CPUs alone so far: --device cpu")
            if self.eyes.two_way and not self.reason:
                self._ask_exactly(self.eyes, self._sample, images, proof, layers.attending)
        except CannotSee as error:
            self.refuse(str(error))
        except Exception as error:  # as where the model's own code was asked
            if is_shortage(error):
                raise
            self.refuse(f"its code can't be given rows of images ({type(error).__name__}: {error})")

    def prove(self, served: Served, proof: Proof, *, rounded: bool) -> None:
        """Compute the prompt with images at the model's level, or have them refused."""
        sample, self._sample = self._sample, None  # its logits may take much memory, and nobody asks again
        if not served.level.chunked or served.level is Level.BATCHED:
            self.refuse(f"at level {served.level} they have no form")
        if self.reason or self.eyes is None or sample is None:
            return
        _attend_by_torch(self._model)
        if served.level is Level.FUSED and served.make_model is None:
            self.eyes.rest_embedding()
        try:
            images = [self.eyes.look(each) for each in sample.images]
            found = self._compute(served.make_runner, sample, images)
        except Exception as error:  # as where the model's own code was asked
            if is_shortage(error):
                raise
            self.refuse(f"computing an image fails ({type(error).__name__}: {error})")
            return
        self._judge(proof.compare(found, sample.expected, rounded=rounded))

    def info(self, path: Path, config: ModelConfig, progress: Callable[[str], None]) -> VisionInfo:
        """Return what callers are told, and say it; the model's files are in `path`."""
        if self.reason:
            progress(f"Images are refused: {self.reason}")
            return VisionInfo(token="", placeholder="", reason=self.reason)
        own, mark, placeholder = self.processor, self.processor.mark, placeholder_of(path, config)
        whole = placeholder if placeholder.count(mark) == 1 else mark
        progress(f"Images are taken: prompts have {whole} for one")
        edges = {"before": own.before, "behind": own.behind}
        return VisionInfo(token=mark, placeholder=whole, row_id=own.row_id, **edges)

    def sight(
        self,
        ids: Integers,
        keys: Sequence[bytes],
        images: Sequence[ImageRows],
        release: Callable[[], None] | None = None,
    ) -> Sight:
        """Return what a prompt sees; raise ValueError if its tokens are for other images."""
        assert self.eyes is not None, "it is there where images aren't refused"
        places = (ids == self.processor.row_id).nonzero()[0]
        if len(places) != sum(len(each.rows) for each in images):
            raise ValueError("its tokens stand for other images")
        positions = self.eyes.positions(ids, images)
        return Sight(keys, images, places, positions, release, two_way=self.eyes.two_way)

    def _ask(self) -> Sample:
        """Return what the model's own code says of two images, or of one if it can't tell two apart."""
        from inference.vision.processor import sample_pictures

        processor, pictures = self.processor, sample_pictures()
        prepared = [processor.prepare(each) for each in pictures]
        text = _BEFORE + processor.mark + _BETWEEN + processor.mark + _BEHIND
        inputs, beside = processor.whole(text, pictures), processor.mark * 2
        for each, made in ((text, inputs), (beside, processor.whole(beside, pictures))):
            if made["input_ids"][0].tolist() != self._spliced(each, prepared):
                self.most = 1
        types = next((name for name in _TYPES if name in inputs), None)
        if self.most or not (types or is_small(self._model)):  # whether images see each other takes two
            text, prepared = _BEFORE + processor.mark + _BEHIND, prepared[:1]
            inputs = processor.whole(text, pictures[:1])
        ids = self._spliced(text, prepared)
        if inputs["input_ids"][0].tolist() != ids:
            raise CannotSee("its images' tokens depend on the text around them")
        if len(ids) >= self._positions:
            raise CannotSee(f"a small one with a few words takes {len(ids)} of {self._positions} tokens")
        rows = (np.array(ids) != processor.row_id).nonzero()[0]
        return Sample(tuple(ids), tuple(prepared), rows, self._own_logits(inputs, rows), types)

    def _spliced(self, text: str, prepared: Sequence[Prepared]) -> list[int]:
        """Return a text's tokens with those of images in the places of their marks."""
        ids: list[int] = []
        images = iter(prepared)
        for each in self.processor.prompt_ids(text):
            ids += next(images).ids if each == self.processor.mark_id else (each,)
        return ids

    @torch.inference_mode()
    def _own_logits(self, inputs: dict[str, Tensor], rows: Integers) -> Tensor:
        device = self._model.device
        head, wanted = Head(self._model), torch.from_numpy(rows).to(device)
        try:
            with asking_for_weights():
                output = self._model(
                    **on_device(self._model, inputs), use_cache=False, **head.arguments(wanted)
                )
        finally:
            forget(self._model)
        return head.logits(output.logits, wanted).clone()

    def _ask_by_rows(
        self, eyes: Eyes, sample: Sample, images: Sequence[ImageRows], proof: Proof, *, rounds: bool
    ) -> None:
        """Have images refused if the model's code makes something else of their rows than of them.

        If it does so only where it isn't told which tokens are images', these see those behind them. Without
        `rounds` the logits of the model as it is served are to judge.
        """
        verdict = self._same_either_way(eyes, sample, images, proof)
        if not verdict.holds and any(each.dtype in NARROW for each in self._model.parameters()):
            with in_float32(self._model):  # 16 bits round away as much as what images' tokens see changes
                sample = self._ask()
                images = [eyes.look(each) for each in sample.images]
                verdict = self._same_either_way(eyes, sample, images, proof)
        if rounds or eyes.two_way:
            self._judge(verdict)

    def _same_either_way(
        self, eyes: Eyes, sample: Sample, images: Sequence[ImageRows], proof: Proof
    ) -> Verdict:
        """Compare what the code makes of rows, told which are images' if it makes something else without."""
        verdict = self._same_code(eyes, sample, images, proof)
        if verdict.holds or not sample.types:
            return verdict
        eyes.two_way = True
        told = self._same_code(eyes, sample, images, proof)
        eyes.two_way = told.holds
        return told if told.holds else verdict

    def _ask_exactly(
        self,
        eyes: Eyes,
        sample: Sample,
        images: Sequence[ImageRows],
        proof: Proof,
        probed: dict[nn.Module, Probed],
    ) -> None:
        """Have images refused if their tokens see others than those of their run, or not in all layers.

        By torch's attention: what the model is rounded to later would hide another pattern.
        """
        _attend_by_torch(self._model)
        cache = PagedCache(probed, blocks_for(len(sample.ids)), torch.float32, self._model.device)
        runner = PagedRunner(self._model, cache, eyes=eyes)
        try:
            self._judge(proof.compare(self._compute(lambda _: runner, sample, images), sample.expected))
        finally:
            for module in probed:
                uninstall(module)

    def _same_code(self, eyes: Eyes, sample: Sample, images: Sequence[ImageRows], proof: Proof) -> Verdict:
        """Compare what the code makes of the images' rows, and of a prompt that ends behind the last one."""
        last = max(at for at, each in enumerate(sample.ids) if each == self.processor.row_id)
        for each in (sample, sample.first(last + 2)):
            verdict = proof.compare(self._by_rows(eyes, each, images), each.expected)
            if not verdict.holds or verdict.error > _SAME_CODE:
                return replace(verdict, holds=False)
        return verdict

    def _judge(self, verdict: Verdict) -> None:
        if not verdict.holds:
            why = verdict.complaint or f"{verdict.error:.1e} off"
            self.refuse(f"with an image the model's own logits aren't reproduced ({why})")

    @torch.inference_mode()
    def _by_rows(self, eyes: Eyes, sample: Sample, images: Sequence[ImageRows]) -> Tensor:
        """Return the same logits by the model's own code, which is given the images' rows."""
        ids = np.array(sample.ids)
        sight = self.sight(ids, [b""] * len(images), images)
        rows = torch.cat(sight.rows(0, len(sight.places), embedded=True))
        positions = np.arange(len(ids))[None] if sight.positions is None else sight.positions[:, None]
        head, wanted = Head(self._model), torch.from_numpy(sample.rows).to(self._model.device)
        told = torch.from_numpy((ids == self.processor.row_id)[None]).int().to(self._model.device)
        types = {sample.types: told} if sample.types and eyes.two_way else {}
        with eyes.giving((torch.from_numpy(sight.places), rows)):
            output = self._model(
                input_ids=torch.from_numpy(ids)[None].to(self._model.device),
                position_ids=torch.from_numpy(positions).to(self._model.device),
                use_cache=False,
                **types,
                **head.arguments(wanted),
            )
        return head.logits(output.logits, wanted)

    def _compute(self, make_runner: MakeRunner, sample: Sample, images: Sequence[ImageRows]) -> Tensor:
        """Return the same logits, computed in pieces that cut an image, and token by token at the end.

        Of one that has to be whole, what is behind the cut is computed with the first piece, and again.
        """
        ids = np.array(sample.ids)
        sight = self.sight(ids, [b"%d" % at for at in range(len(images))], images)
        table = SlotTable(slots=1, pages=blocks_for(len(ids)))
        text = Text(scored_request("image", sample.ids), sight=sight)
        table.enter(text)
        table.extend(text, list(reversed(range(blocks_for(len(ids))))))
        runner = make_runner(blocks_for(len(ids)))
        middle, end = int(sight.places[len(sight.places) // 4]), len(ids)
        first = sight.whole(middle, middle + 1) if sight.two_way else middle
        found, done = [], 0
        for start, stop in ((0, first), (middle, end - 2), (end - 2, end - 1), (end - 1, end)):
            pieces = pack(table, Decodes(), [Chunk(text, start, stop)])
            wanted = sample.rows[(sample.rows >= done) & (sample.rows < stop)] - start
            done = stop
            if len(wanted) == 0:
                wanted = np.array([stop - start - 1])  # a step has one at least
            found.append(runner.run(replace(pieces, rows=wanted)).clone())
        return torch.cat(found)


def open_vision(
    model: PreTrainedModel, path: Path, described: PreTrainedConfig, positions: int, reason: str = ""
) -> Vision | None:
    """Return what a model's images need, or why they are refused; None if it doesn't see."""
    if type(described) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return None
    return Vision(model, path, described, positions, reason)


def placeholder_of(path: Path, config: ModelConfig) -> str:
    """Return what a model's chat template writes for an image, "" if that isn't plain."""
    before, behind = "an image comes now", "and now it has come"
    parts = [{"type": "text", "text": before}, {"type": "image"}, {"type": "text", "text": behind}]
    try:
        template = load_chat_template(ModelFiles(path), config)
        prompt = template.render([{"role": "user", "content": parts}])
    except (TemplateFailed, ModelUnavailable):
        return ""
    _, found, rest = prompt.partition(before)
    between, also, _ = rest.partition(behind)
    return between.strip() if found and also else ""


def _processor(path: Path, described: PreTrainedConfig) -> Processor:
    """Return what a model's files have for images; raise CannotSee."""
    try:
        from inference.vision.processor import Processor  # and with it Pillow
    except ImportError as error:
        raise CannotSee(f"{error}: pip install pillow, and start again") from error
    return Processor(path, described)


def _attend_by_torch(model: PreTrainedModel) -> None:
    """Have what isn't the language model attend by torch: the paged cache is for that alone."""
    text = model.config.get_text_config()
    others = [name for name in model.config.sub_configs if getattr(model.config, name, None) is not text]
    try:
        model.set_attn_implementation(dict.fromkeys(others, "sdpa"))
    except ValueError:  # its code has another one only
        model.set_attn_implementation(dict.fromkeys(others, "eager"))
