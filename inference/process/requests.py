"""Requests as they cross: everything but the compiled grammar, of which the source goes."""

from __future__ import annotations

from inference.ipc.grammar_tokens import GrammarSource
from inference.ipc.messages import Submit
from inference.types import CompiledGrammar, CoreRequest


def to_submit(number: int, request: CoreRequest) -> Submit:
    """Return a request as it crosses."""
    return Submit(
        number,
        request.id,
        request.prompt_ids,
        request.max_new_tokens,
        request.min_new_tokens,
        request.ignore_eos,
        request.sampling,
        request.logprobs,
        request.top_n_tokens,
        request.prompt_logprobs,
        request.prompt_top_n_tokens,
        None if request.grammar is None else _source(request.grammar),
        request.owner,
        request.salt,
        request.adapter,
        request.images,
    )


def _source(grammar: CompiledGrammar) -> GrammarSource:
    from inference.grammar.late import LateGrammar  # only where there are grammars

    if not isinstance(grammar, LateGrammar):
        raise TypeError(f"{type(grammar).__name__} can't go to another process")
    return grammar.source


def from_submit(message: Submit, core_id: str, grammar: CompiledGrammar | None) -> CoreRequest:
    """Return a request that crossed, under the id that the core is to know it by."""
    return CoreRequest(
        id=core_id,
        prompt_ids=message.prompt_ids,
        max_new_tokens=message.max_new_tokens,
        min_new_tokens=message.min_new_tokens,
        ignore_eos=message.ignore_eos,
        sampling=message.sampling,
        logprobs=message.logprobs,
        top_n_tokens=message.top_n_tokens,
        prompt_logprobs=message.prompt_logprobs,
        prompt_top_n_tokens=message.prompt_top_n_tokens,
        grammar=grammar,
        owner=message.owner,
        salt=message.salt,
        adapter=message.adapter,
        images=message.images,
    )
