"""Whether texts of a model with an encoder, computed token by token, have the model's own logits."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from inference.encoded.texts import Start
from inference.kv_cache.blocks import blocks_for
from inference.levels.proof import PROOF_BLOCKS, Proof, Verdict, scored_request
from inference.sequences.computing import Runner
from inference.sequences.state import Chunk, Decodes, Sequence, SlotTable, pack

_LATER = 3  # steps by which the second text begins later: batches are of texts of several lengths


class EncodedProof(Proof):
    """The model's own logits of two texts behind a prompt each."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype, positions: int, start: Start) -> None:
        self._start = start
        super().__init__(model, dtype, positions)

    def _make_prompts(self, model: PreTrainedModel, positions: int) -> list[NDArray[np.int64]]:
        """Return two prompts without padding, which some families give no position (M2M-100)."""
        padding = getattr(model.config.get_text_config(decoder=True), "pad_token_id", None)
        prompts = super()._make_prompts(model, positions)
        if padding is None:
            return prompts
        return [np.where(prompt == padding, abs(padding - 1), prompt) for prompt in prompts]

    def _own_logits(self, model: PreTrainedModel, prompt: NDArray[np.int64]) -> Tensor:
        source, text = _halves(prompt)
        decoded = torch.tensor([[*self._start, *text.tolist()]], device=model.device)
        with torch.inference_mode():
            read = torch.from_numpy(source)[None].to(model.device)
            output = model(input_ids=read, decoder_input_ids=decoded, use_cache=False)
        logits: Tensor = output.logits[0, len(self._start) - 1 :].float()
        return logits

    def _own_noise(self, model: PreTrainedModel) -> float:
        return self._noise_of_rounding(model)

    def check_text(self, runner: Runner[Tensor], *, rounded: bool = False) -> Verdict:
        """Compare the logits when both texts are computed token by token; `rounded`: nearly right will do."""
        return self.judge(lambda: self._text_logits(runner), rounded=rounded)

    def _text_logits(self, runner: Runner[Tensor]) -> Tensor:
        halves = [_halves(prompt) for prompt in self.prompts]
        table = SlotTable(slots=len(halves), pages=PROOF_BLOCKS)
        sequences = [_sequence(table, index, source) for index, (source, _) in enumerate(halves)]
        found: list[list[Tensor]] = [[] for _ in sequences]

        def run(going: list[int], starts: list[int]) -> None:
            chunks = [
                Chunk(sequences[at], start, sequences[at].length)
                for at, start in zip(going, starts, strict=True)
            ]
            for at, row in zip(going, runner.run(pack(table, Decodes(), chunks)), strict=True):
                found[at].append(row.clone())

        for at in range(len(sequences)):
            run([at], [0])
        late = [[*[None] * (_LATER * at), *text.tolist()] for at, (_, text) in enumerate(halves)]
        for tokens in zip_longest(*late):
            going = [at for at, token in enumerate(tokens) if token is not None]
            slots = np.array([sequences[at].slot for at in going], dtype=np.int64)
            table.append(slots, np.array([tokens[at] for at in going], dtype=np.int64))
            run(going, [sequences[at].length - 1 for at in going])
        return torch.stack([row for rows in found for row in rows])


def _halves(prompt: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what the encoder reads of a prompt of the proof, and the text behind that."""
    return prompt[: len(prompt) // 2], prompt[len(prompt) // 2 :]


def _sequence(table: SlotTable, index: int, source: NDArray[np.int64]) -> Sequence:
    sequence = Sequence(scored_request(str(index), tuple(source.tolist()), scored=False))
    table.enter(sequence)
    table.extend(sequence, [*range(blocks_for(sequence.length))])
    return sequence
