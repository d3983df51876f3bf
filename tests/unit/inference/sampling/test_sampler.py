from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from inference.grammar.masks import Endings, Guide  # noqa: E402
from inference.prompt_tops import PromptTops  # noqa: E402
from inference.sampling.penalties import Bias  # noqa: E402
from inference.sampling.sampler import NOT_FINITE  # noqa: E402
from inference.sampling.tops import MOST_TIED  # noqa: E402
from inference.sequences.state import (  # noqa: E402
    Chunk,
)
from inference.sequences.work import Work  # noqa: E402
from inference.types import LogprobsMode, Sampling  # noqa: E402
from tests.unit.inference.paper_grammar import PaperGrammar  # noqa: E402
from tests.unit.inference.sampled import (  # noqa: E402
    EOS,
    PROCESSED,
    RAW,
    Choice,
    append,
    choice,
    choices,
    choose,
    pieces_of,
    run,
    sampler,
    sequence,
)


def test_greedy_takes_the_best_and_says_how_likely_it_was() -> None:
    found = choice([0.0, 2.0, 1.0], sequence())
    assert found.token_id == 1
    assert found.logprob == pytest.approx(torch.tensor([0.0, 2.0, 1.0]).log_softmax(0)[1].item())
    assert found.top == ()


@pytest.mark.parametrize(("mode", "expected"), [(PROCESSED, 0.0), (RAW, -0.6931472)])
def test_logprobs_are_of_the_raw_or_of_the_warped_scores(mode: LogprobsMode, expected: float) -> None:
    found = choice([1.0, 1.0 - 1e-6], sequence(Sampling(sample=True, top_k=1), mode=mode))
    assert found.logprob == pytest.approx(expected, abs=1e-5)


def test_both_modes_in_one_batch() -> None:
    sampling = Sampling(temperature=0.5)
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
    results = choose(logits, sequence(sampling, mode=RAW), sequence(sampling, mode=PROCESSED))
    expected = [logits[0].log_softmax(0)[0].item(), (logits[1] * 2).log_softmax(0)[0].item()]
    assert [result.logprob for result in results if isinstance(result, Choice)] == pytest.approx(expected)


def test_top_tokens_are_sorted_and_ties_make_them_more() -> None:
    found = choice([1.0, 3.0, 2.0, 2.0, 0.0], sequence(top=2))
    logprobs = torch.tensor([1.0, 3.0, 2.0, 2.0, 0.0]).log_softmax(0)
    assert [token for token, _ in found.top] == [1, 2, 3]
    assert [logprob for _, logprob in found.top] == pytest.approx(logprobs[[1, 2, 3]].tolist())


@pytest.mark.parametrize("top_k", [0, 2500])
def test_top_tokens_are_not_the_whole_vocabulary_where_all_are_alike(top_k: int) -> None:
    weakest = Sampling(sample=True, temperature=1.1, repetition_penalty=1e-9, top_k=top_k)
    (found,) = choose(torch.linspace(-1, 1, 3000)[None], sequence(weakest, top=5, prompt=(2999, 1)))
    assert isinstance(found, Choice)
    assert [token for token, _ in found.top[:2]] == [2999, 0]
    assert [logprob for _, logprob in found.top] == sorted((each for _, each in found.top), reverse=True)
    assert len(found.top) == 5 + MOST_TIED


def test_prompts_top_tokens_are_as_many_as_asked_for_of_equal_ones_the_first() -> None:
    asked = sequence(mode=RAW, top=3, prompt=(7, 8, 9), prompt_logprobs=True)
    logits = torch.zeros(3, 3000)
    logits[1, 2000] = 1.0
    found = run(logits, Chunk(asked, 0, 3)).prompts[asked].top
    assert found is not None
    assert [[token for token, _ in top] for top in found.pairs()] == [[0, 1, 2], [2000, 0, 1]]


def test_equal_top_tokens_come_in_one_order_whatever_others_ask_for() -> None:
    """torch's own order of equal ones depends on how many are asked for."""
    torch.manual_seed(0)
    alike = torch.randn(40, 3000).round(decimals=1)  # many of the best are equal
    for row in alike:
        row[row.topk(3).indices] = row.max()
        (alone,) = choose(row[None], sequence(top=3))
        beside = choose(torch.stack([row, row]), sequence(top=3), sequence(top=20))[0]
        assert isinstance(alone, Choice)
        assert isinstance(beside, Choice)
        assert alone.top == beside.top
        assert [token for token, _ in alone.top] == sorted(token for token, _ in alone.top)


def test_impossible_tokens_are_not_among_a_prompts_top_tokens() -> None:
    asked = sequence(mode=RAW, top=3, prompt=(0, 1), prompt_logprobs=True)
    logits = torch.tensor([[-inf, 0.0, 0.0, -inf, -inf]])
    found = run(torch.cat([logits, logits]), Chunk(asked, 0, 2)).prompts[asked].top
    assert found is not None
    assert [[token for token, _ in top] for top in found.pairs()] == [[1, 2]]


def test_a_prompts_top_tokens_are_not_those_of_generated_ones() -> None:
    asked = sequence(mode=RAW, top=3, prompt=(0, 1), prompt_logprobs=True)
    asked.request = replace(asked.request, prompt_top_n_tokens=0)
    chosen = run(torch.zeros(2, 9), Chunk(asked, 0, 2))
    assert chosen.prompts[asked].top is None
    assert chosen.top is not None
    assert len(chosen.top[0]) >= 3


def test_biases_are_put_in_columns_once_for_each_text(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Sequence[tuple[int, float]]] = []
    real = Bias.of

    def of(pairs: Sequence[tuple[int, float]]) -> Bias | None:
        made.append(pairs)
        return real(pairs)

    monkeypatch.setattr(Bias, "of", of)
    biases = ((1, 4.0), (2, -1.0)), ((0, 5.0), (9, 1.0))  # the model has no token 9
    asked = [sequence(Sampling(logit_bias=bias)) for bias in biases]
    logits, tokens = torch.zeros(2, 4), []
    chooses = sampler(logits)
    for _ in range(3):
        work = Work(pieces_of(*(Chunk(each, 0, each.length) for each in asked)))
        tokens.append(chooses.choose(work, logits).tokens.tolist())
    assert (tokens, made) == ([[1, 0]] * 3, list(biases))


def test_top_tokens_never_hold_what_a_filter_removed() -> None:
    found = choice([1.0, 3.0, 2.0, 0.0], sequence(Sampling(sample=True, top_k=2), top=4))
    assert [token for token, _ in found.top] == [1, 2]


def test_top_tokens_of_a_raw_request_hold_them() -> None:
    found = choice([1.0, 3.0, 2.0, 0.0], sequence(Sampling(sample=True, top_k=1), mode=RAW, top=3))
    assert [token for token, _ in found.top] == [1, 2, 0]


def test_each_row_gets_as_many_top_tokens_as_it_asked_for() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0]] * 3)
    results = choose(logits, sequence(top=1), sequence(), sequence(top=50))
    assert [len(result.top) for result in results if isinstance(result, Choice)] == [1, 0, 3]


@pytest.mark.parametrize("bad", [[nan, 0.0], [inf, 0.0], [-inf, -inf]])
@pytest.mark.parametrize("mode", LogprobsMode)
def test_row_without_finite_scores_fails_alone(bad: list[float], mode: LogprobsMode) -> None:
    sampled = Sampling(sample=True, seed=1)
    logits = torch.tensor([[1.0, 0.0], bad, [0.0, 1.0]])
    results = choose(logits, sequence(), sequence(sampled, mode=mode), sequence())
    assert results[1] == NOT_FINITE
    assert [result.token_id for result in results if isinstance(result, Choice)] == [0, 1]


def test_draws_follow_the_distribution() -> None:
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1])
    count = 4000
    rows = [sequence(Sampling(sample=True, seed=seed)) for seed in range(count)]
    results = choose(weights.log().expand(count, 4), *rows)
    drawn = torch.tensor([result.token_id for result in results if isinstance(result, Choice)]).bincount(
        minlength=4
    )
    chi_square = float(((drawn - weights * count) ** 2 / (weights * count)).sum())
    assert chi_square < 16.3  # 3 degrees of freedom: more once in a thousand, and the seeds are fixed


def test_draws_along_one_text_follow_the_distribution() -> None:
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1])
    text = sequence(Sampling(sample=True, seed=5))
    drawn = torch.zeros(4)
    for _ in range(99):
        found = choice(weights.log().tolist(), text)
        drawn[found.token_id] += 1
        append(text, found.token_id)
    chi_square = float(((drawn - weights * 99) ** 2 / (weights * 99)).sum())
    assert chi_square < 16.3


def test_a_draw_never_takes_what_a_filter_removed() -> None:
    logits = torch.randn(500, 40, generator=torch.Generator().manual_seed(0))
    rows = [sequence(Sampling(sample=True, seed=seed, top_k=3)) for seed in range(500)]
    drawn = [result.token_id for result in choose(logits, *rows) if isinstance(result, Choice)]
    best = logits.topk(3).indices
    assert all(token in row for token, row in zip(drawn, best.tolist(), strict=True))


def test_smallest_noise_takes_the_first_token_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.sampling.sampler.uniforms", lambda seeds, _: np.zeros(len(seeds)))
    sampled = sequence(Sampling(sample=True, top_k=2))
    assert choice([-5.0, 1.0, -5.0, 2.0], sampled).token_id == 1


def test_largest_noise_takes_the_last_token_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "inference.sampling.sampler.uniforms", lambda seeds, _: np.full(len(seeds), 1 - 2.0**-48)
    )
    sampled = sequence(Sampling(sample=True, top_k=2))
    assert choice([2.0, 1.0, -5.0, -5.0], sampled).token_id == 1


def test_seeded_draw_is_the_same_alone_and_in_any_batch() -> None:
    logits = torch.randn(8, 200, generator=torch.Generator().manual_seed(0))
    rows = [sequence(Sampling(sample=True, seed=seed, temperature=1.5, top_p=0.9)) for seed in range(8)]
    together = choose(logits, *rows)
    backwards = choose(logits.flip(0), *reversed(rows))[::-1]
    alone = [choose(logits[row : row + 1], rows[row])[0] for row in range(8)]
    assert together == backwards == alone


def test_greedy_and_sampled_rows_mix() -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0]] * 3)
    hot = Sampling(sample=True, temperature=100.0, seed=11)
    results = choose(logits, sequence(), sequence(hot), sequence())
    assert [results[0], results[2]] == [choice([0.0, 5.0, 1.0], sequence())] * 2
    assert results[1] == choice([0.0, 5.0, 1.0], sequence(hot))


def test_prompt_logprobs_are_raw_and_cover_a_pieces_next_tokens() -> None:
    text = sequence(Sampling(temperature=0.5), prompt=(1, 0, 2, 1), prompt_logprobs=True)
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    expected = [logits[at].log_softmax(0)[token].item() for at, token in enumerate((0, 2, 1))]
    first = run(logits[:2], Chunk(text, 0, 2))
    last = run(logits[2:], Chunk(text, 2, 4))
    assert first.tokens.tolist() == []
    assert [*first.prompts[text].logprobs, *last.prompts[text].logprobs] == pytest.approx(expected)
    assert last.tokens.tolist() == [int(logits[3].argmax())]


def test_piece_without_rows_gets_nothing() -> None:
    text, other = sequence(prompt=(1, 2, 3, 4)), sequence()
    logits = torch.tensor([[0.0, 1.0]])
    chosen = run(logits, Chunk(text, 0, 2), Chunk(other, 0, 3))
    assert chosen.tokens.tolist() == [1]
    assert not chosen.prompts
    assert not chosen.failures


def guide(*allowed: int) -> Guide:
    """Return a guide that lets these tokens follow, its mask ready."""
    guide = Guide(PaperGrammar(lambda text: allowed).start(), Endings(40, (EOS,)), Guide.compute)
    guide.begin()
    guide.ready = True
    return guide


def test_grammar_decides_what_can_be_chosen_and_processed_logprobs_are_of_what_it_leaves() -> None:
    logits = [5.0, 1.0, 4.0, 3.0]
    raw = choice(logits, sequence(mode=RAW, top=3, guide=guide(1, 3)))
    processed = choice(logits, sequence(top=3, guide=guide(1, 3)))
    assert raw.token_id == processed.token_id == 3
    assert raw.logprob == pytest.approx(torch.tensor(logits).log_softmax(0)[3].item())
    assert [token for token, _ in raw.top] == [0, 2, 3]
    assert processed.logprob == pytest.approx(torch.tensor([1.0, 3.0]).log_softmax(0)[1].item())
    assert [token for token, _ in processed.top] == [3, 1]


def test_draws_follow_the_distribution_of_what_the_grammar_leaves() -> None:
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1])
    count = 3000
    rows = [sequence(Sampling(sample=True, seed=seed), guide=guide(1, 3)) for seed in range(count)]
    drawn = [
        result.token_id
        for result in choose(weights.log().expand(count, 4), *rows)
        if isinstance(result, Choice)
    ]
    assert set(drawn) == {1, 3}
    assert abs(drawn.count(1) / count - 0.75) < 4 * (0.75 * 0.25 / count) ** 0.5


def test_columns_past_the_mask_are_not_allowed() -> None:
    logits = [0.0] * 40 + [9.0] * 60  # a mask of two words, and embeddings that were padded
    assert choice(logits, sequence(guide=guide(1, 2))).token_id == 1


@pytest.mark.parametrize(
    ("min_tokens", "allowed", "expected"),
    [(0, None, EOS), (1, None, 2), (1, (EOS, 1), 1), (1, (EOS,), EOS), (0, (EOS, 1), EOS)],
)
def test_eos_is_hidden_below_the_least_number_of_tokens(
    min_tokens: int, allowed: tuple[int, ...] | None, expected: int
) -> None:
    of = sequence(min_tokens=min_tokens, guide=None if allowed is None else guide(*allowed))
    assert choice([9.0, 0.0, 1.0], of).token_id == expected
    append(of, 1)
    assert choice([9.0, 0.0, 1.0], of).token_id == EOS


def test_row_that_was_held_gives_what_it_would_have_given() -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    hot = Sampling(sample=True, temperature=2.0, seed=5)
    texts = [sequence(hot, guide=guide(*range(0, 40, 2)), top=2) for _ in range(3)]
    expected = choose(logits, *texts)
    chunks = tuple(Chunk(text, 0, text.length) for text in texts)
    work = Work(pieces_of(*chunks), late=frozenset(texts[:2]))
    assert choices(sampler(logits).choose(work, logits.clone()), work) == expected[2:]
    held = [text.held for text in texts]
    other = Work(pieces_of(chunks[2]), resumed=(texts[1],))
    assert choices(sampler(logits).choose(other, logits[2:]), other) == [expected[2], expected[1]]
    alone = Work(pieces_of(), resumed=(texts[0],))
    assert choices(sampler(logits).choose(alone, None), alone) == expected[:1]
    assert held[2] is None


def test_row_is_held_beside_the_prompts_logprobs() -> None:
    text = sequence(prompt=(1, 0, 2), prompt_logprobs=True, guide=guide(1))
    logits = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    chosen = run(logits, Chunk(text, 0, 3), late=(text,))
    assert chosen.tokens.tolist() == []
    assert len(chosen.prompts[text].logprobs) == 2
    assert isinstance(text.held, Tensor)
    assert text.held.tolist() == logits[2].tolist()


def test_top_tokens_of_the_prompt_are_raw_and_cover_a_pieces_next_tokens() -> None:
    text = sequence(Sampling(temperature=0.5), prompt=(1, 0, 2, 1), prompt_logprobs=True, top=2)
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    logits[1] = 0.0  # all as likely as each other
    parts = [
        run(logits[start:stop], Chunk(text, start, stop)).prompts[text].top
        for start, stop in ((0, 2), (2, 4))
    ]
    found = PromptTops.joined(part for part in parts if part is not None).pairs()
    logprobs = logits.log_softmax(1)
    assert [len(top) for top in found] == [2, 2, 2]
    for at, top in enumerate(found):
        values, tokens = logprobs[at].topk(len(top))
        assert sorted(token for token, _ in top) == (sorted(tokens.tolist()) if at != 1 else [0, 1])
        assert [logprob for _, logprob in top] == pytest.approx(values.tolist())


def test_prompt_without_top_tokens_asked_for_has_none() -> None:
    text = sequence(prompt=(1, 0, 2, 1), prompt_logprobs=True)
    chosen = run(torch.zeros(4, 5), Chunk(text, 0, 4))
    assert chosen.prompts[text].top is None
