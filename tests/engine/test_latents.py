"""Models with latent attention, whose cache keeps latents: texts and log-probabilities are transformers'."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from inference.kernels.native import open_library
from tests.engine.cores import Session, best, config, request
from tests.engine.models import prompts, save_model
from tests.engine.test_in_4_bits import rounded_as
from tests.engine.texts import check_texts, rounding

FAMILIES = "deepseek_v2 deepseek_v3 glm4_moe_lite minicpm3 youtu axk1 longcat_flash kimi_k25".split()
FUSED = "deepseek_v2 deepseek_v3 glm4_moe_lite minicpm3 youtu kimi_k25".split()
LATENTS, EXPANDED = (
    4 * 2 * (32 + 4),
    4 * 2 * 4 * 60,
)  # bytes of a token in the toys' two layers, and four heads
needs_kernels = pytest.mark.skipif(open_library() is None, reason="the extension isn't built")


def planned_bytes(session: Session) -> int:
    """Return what a token takes of the cache, as the last plan says."""
    plan = [line for line in session.progress if line.startswith("Plan")][-1]
    found = re.search(r"tokens x ([\d,]+) B", plan)
    assert found, plan
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_transformers_own(family: str, tmp_path: Path) -> None:
    model = save_model(family, tmp_path)
    session = Session(config(tmp_path, max_total_tokens=64))
    assert session.level == best("fused" if family in FUSED else "native", "paged+merged")
    check_texts(session, model)
    session.close()


@pytest.mark.parametrize(("on", "taken"), [(True, LATENTS), (False, EXPANDED)])
def test_the_plan_says_what_a_token_takes(on: bool, taken: int, tmp_path: Path) -> None:
    model = save_model("deepseek_v3", tmp_path)
    session = Session(config(tmp_path, max_total_tokens=64, latent_cache=on))
    assert planned_bytes(session) == taken
    assert session.level == best("fused" if on else "native", "paged+merged")
    check_texts(session, model)
    session.close()


@pytest.mark.parametrize("family", ["deepseek_v3", "minicpm3"])
def test_bits_are_the_same_alone_in_a_batch_after_preemption_and_from_the_cache(
    family: str, tmp_path: Path
) -> None:
    save_model(family, tmp_path)
    asked = [
        request(str(at), text, tokens=30, ignore_eos=True) for at, text in enumerate(prompts(9, 40, 17, 33))
    ]

    def said(session: Session, at_once: bool) -> list[list[tuple[int, float]]]:
        parts = [asked] if at_once else [[each] for each in asked]
        heard = [session.run(part) for part in parts]
        found = {id: outputs for each in heard for id, outputs in each.outputs.items()}
        return [[(each.token_id, each.logprob) for each in found[ask.id]] for ask in asked]

    alone = Session(config(tmp_path, max_total_tokens=80))
    expected = said(alone, at_once=False)
    assert said(alone, at_once=False) == expected  # whose prompts are known now
    alone.close()
    crowded = Session(
        config(tmp_path, max_total_tokens=80, max_batch_total_tokens=128, max_batch_prefill_tokens=8)
    )
    exact = "the same bits in any batch" in "".join(crowded.progress)
    found = said(crowded, at_once=True)
    crowded.close()
    assert exact == (best("fused", "") == "fused")
    assert [[token for token, _ in text] for text in found] == [
        [token for token, _ in text] for text in expected
    ]
    assert not exact or found == expected


@needs_kernels
@pytest.mark.parametrize("family", ["deepseek_v3", "minicpm3"])
def test_weights_rounded_to_4_bits_are_expanded_where_latents_are_multiplied(
    family: str, tmp_path: Path
) -> None:
    model = save_model(family, tmp_path)
    session = Session(rounding(tmp_path, "bitsandbytes-nf4"))
    assert session.level == "fused"
    assert planned_bytes(session) == LATENTS
    rounded_as(model, "nf4")
    check_texts(session, model)
    session.close()


@needs_kernels
def test_with_int8_the_cache_is_half_as_large(tmp_path: Path) -> None:
    save_model("deepseek_v3", tmp_path)
    plain = config(tmp_path, max_total_tokens=64)
    session = Session(replace(plain, model=replace(plain.model, quantize="int8")))
    assert session.level == "fused"
    assert planned_bytes(session) == LATENTS // 2
    session.close()


@needs_kernels
@pytest.mark.parametrize("family", FUSED)
def test_what_is_not_fused_says_the_same(family: str, tmp_path: Path) -> None:
    """Over the same cache, so that a token takes as much of it."""
    save_model(family, tmp_path)
    asked = [request(str(at), text, tokens=20, ignore_eos=True) for at, text in enumerate(prompts(9, 40))]
    heard, taken = [], []
    for fuse in (True, False):
        session = Session(config(tmp_path, max_total_tokens=64, fuse_layers=fuse))
        assert session.level == ("fused" if fuse else "native")
        taken.append(planned_bytes(session))
        heard.append(session.run(asked))
        session.close()
    assert taken[0] == taken[1]
    for ask in asked:
        fused, apart = (each.outputs[ask.id] for each in heard)
        assert [each.token_id for each in fused] == [each.token_id for each in apart]
        assert [each.logprob for each in fused] == pytest.approx([each.logprob for each in apart], abs=1e-4)


@needs_kernels
def test_without_latents_it_is_said_why_layers_are_not_fused(tmp_path: Path) -> None:
    save_model("minicpm3", tmp_path)
    session = Session(config(tmp_path, max_total_tokens=64, latent_cache=False))
    assert "its latents are expanded to each head's keys and values" in "".join(session.progress)
    session.close()
