"""From a request to what the engine's own thread takes: tokenised, checked, its grammar compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inference.config import EngineConfig
from inference.core import Core, ReturningCore
from inference.errors import GrammarRefused, Member
from inference.frontend.limits import (
    check_bias,
    check_ids,
    check_length,
    check_minimum,
    check_prompt,
    find_adapter,
    fit_context,
    fit_logprobs,
)
from inference.frontend.looks import Looks, check_images, with_images
from inference.types import CompiledGrammar, CoreRequest, Grammar, ModelInfo, Request

if TYPE_CHECKING:
    from inference.grammar.compiler import GrammarCompiler
    from inference.text.pipeline import TextPipeline


async def prepare(
    request: Request,
    text: TextPipeline,
    model: ModelInfo,
    compiler: GrammarCompiler | None,
    config: EngineConfig,
    looks: Looks,
) -> CoreRequest:
    """Return the request as the engine takes it.

    Raises InvalidInput, in TGI's order: the grammar comes last, as it costs the most. Raises
    Overloaded if too many of them wait, or too many long prompts. A caller that is cancelled leaves
    nothing behind but images, which it drops.
    """
    check_prompt(request, model)
    check_images(request, model)
    adapter = find_adapter(request.adapter, model)
    check_bias(request.sampling.logit_bias, model.vocabulary_size)
    ids = await prompt_ids(request, text, model, looks)
    max_new_tokens = fit_context(len(ids), request.max_new_tokens, model)
    check_minimum(request.min_new_tokens, request.max_new_tokens, max_new_tokens)
    max_new_tokens = fit_logprobs(request, len(ids), max_new_tokens, config.max_sequence_logprobs)
    return CoreRequest(
        id=request.id,
        prompt_ids=ids,
        max_new_tokens=max_new_tokens,
        min_new_tokens=request.min_new_tokens,
        ignore_eos=request.ignore_eos,
        sampling=request.sampling,
        logprobs=request.logprobs,
        top_n_tokens=request.top_n_tokens,
        prompt_logprobs=request.prompt_logprobs and not model.decoder_start,
        prompt_top_n_tokens=request.prompt_top_n_tokens,
        grammar=None if request.grammar is None else await compiled(request.grammar, compiler),
        owner=request.owner,
        salt=prefix_salt(request, isolated=config.isolate_owners),
        adapter=adapter,
        images=len(request.images),
    )


def renewed(prepared: CoreRequest, request: Request, before: ModelInfo, now: ModelInfo) -> CoreRequest | None:
    """Return what was prepared for a model, by the adapters that it has now; None if it is another model.

    Raises InvalidInput if the request's adapter has gone.
    """
    if now is before:
        return prepared
    if replace(now, adapters=before.adapters) != before:
        return None
    return replace(prepared, adapter=find_adapter(request.adapter, now))


def odd_vocabulary(text: TextPipeline, model: ModelInfo) -> str | None:
    """Return what is to be said of files that know tokens that the model lacks; None if there are none."""
    odd = []
    if text.vocabulary_size > model.vocabulary_size:
        odd.append(
            f"The tokenizer has ids up to {text.vocabulary_size - 1}, and the model's embedding has only "
            f"{model.vocabulary_size} rows: prompts with ids beyond are refused. Are they of one model?"
        )
    beyond = [token_id for token_id in model.eos_token_ids if token_id >= model.vocabulary_size]
    if beyond:
        odd.append(
            f"Texts are to end at the token {', '.join(map(str, beyond))}, and the model has ids up to "
            f"{model.vocabulary_size - 1}: it never comes. Mend `eos_token_id` of generation_config.json"
        )
    return ". ".join(odd) or None


def prefix_salt(request: Request, *, isolated: bool) -> str:
    """Return what separates what is kept of a request's prompt from others': of its owner, its own."""
    if not isolated:
        return request.cache_salt
    return f"{len(request.owner)}:{request.owner}{request.cache_salt}"  # no owner can write another's


async def prompt_ids(
    request: Request, text: TextPipeline, model: ModelInfo, looks: Looks, *, bounded: bool = True
) -> tuple[int, ...]:
    """Return the prompt's tokens, those given or those of its text, from the end as many as asked for.

    `bounded`: a text that is too long whatever its tokens are is refused at once.
    """
    ids, vision = request.prompt_ids, model.vision
    if ids is None:
        if bounded and request.truncate is None:
            check_length(request.prompt, request.max_new_tokens, text.longest_token, model)
        prompt = request.prompt if vision is None else vision.around(request.prompt)
        ids = tuple(await text.encode(prompt, add_special_tokens=request.add_special_tokens))
    if request.prompt_ids is not None or text.vocabulary_size > model.vocabulary_size:
        check_ids(ids, model.vocabulary_size)
    if vision is None or vision.reason:
        return ids if request.truncate is None else ids[-request.truncate :]
    return await with_images(request, ids, text, vision, looks)


def grammar_compiler(text: TextPipeline, model: ModelInfo, core: Core) -> GrammarCompiler | None:
    """Return what compiles grammars for a core, which is told the model's tokens; None if they have no bytes.

    An engine in a process of its own may die and is started again, and this process isn't: here nothing is
    compiled then.
    """
    tokens = text.grammar_tokens(model.eos_token_ids)
    if tokens is None:
        return None
    if not isinstance(core, ReturningCore):
        return text.grammar_compiler(tokens, apart=False)
    core.share(tokens)
    return text.grammar_compiler(tokens, apart=True)


async def compiled(grammar: Grammar | GrammarRefused, compiler: GrammarCompiler | None) -> CompiledGrammar:
    """Return a grammar ready for use; raise GrammarRefused or Overloaded."""
    if isinstance(grammar, GrammarRefused):
        raise GrammarRefused(*grammar.args)  # several requests of a body may share it
    if compiler is None:
        raise GrammarRefused(
            "grammar is not supported: the tokens of this model's tokenizer don't stand for fixed text. "
            "Leave out ",
            Member(grammar.member),
        )
    return await compiler.compile(grammar)
