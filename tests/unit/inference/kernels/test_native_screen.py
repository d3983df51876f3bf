"""The likeliest token by a head's screen: the token and the bits that all of the head's products give."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Gemma2Config, LlamaConfig, PreTrainedConfig

from inference.config import EngineConfig, ModelConfig
from inference.kernels.native import Library, PackedLinear, WeightKind
from inference.kernels.native_layers import StackShape
from inference.kernels.native_model import EndWeights, Logits, NativeModel
from inference.kernels.native_screen import Screen
from inference.planning.precision import screen_bytes
from tests.unit.inference.paged_attention import LIBRARIES, built, native_step, page_count, page_table
from tests.unit.inference.paper_layers import NORMS, native, random_layer, rotary

SCREENING = [library for library in LIBRARIES.values() if library.screens]
OF_EACH_ISA = list({library.isa: library for library in SCREENING}.values())

pytestmark = [built, pytest.mark.skipif(not SCREENING, reason="screens need AVX2 or VPDPBUSD")]
each_isa = pytest.mark.parametrize("library", OF_EACH_ISA, ids=repr)
torch.set_num_threads(1)

SHAPE = StackShape(hidden=96, heads=6, kv_heads=2, head_dim=16, inner=96, eps=1e-5, scaling=0.25)
PAPERS = [random_layer(SHAPE, NORMS[:2], 7)]
WORDS = 7_003  # no whole panels
COS, SIN = rotary(torch.arange(512), SHAPE.head_dim)
ROUNDED, COMPRESSED = "rounded", "12 bits"
KINDS = {"float32": WeightKind.FLOAT32, "int8": WeightKind.INT8}  # of forms; others are bfloat16
FORMS = ["float32", "bfloat16", ROUNDED, COMPRESSED]
FORMS_OF = [  # a copy of int8 is int6
    (library, form)
    for library in OF_EACH_ISA
    for form in (*FORMS, "int8")
    if form != "int8" or library.has_vnni
]
each_form = pytest.mark.parametrize(("library", "form"), FORMS_OF, ids=repr)
EXACTLY = settings(max_examples=25, deadline=None)


def random_head(seed: int) -> Tensor:
    return torch.randn(WORDS, SHAPE.hidden, generator=torch.Generator().manual_seed(seed)).bfloat16()


def pack(library: Library, weight: Tensor, form: str) -> PackedLinear:
    kind = KINDS.get(form, WeightKind.BFLOAT16)
    rounds = form in (ROUNDED, COMPRESSED)
    return PackedLinear.pack(library, weight, None, kind, round_inputs=rounds, compress=form == COMPRESSED)


class Made:
    """A model whose head is screened, over one table of embeddings."""

    def __init__(self, library: Library, head: PackedLinear, table: Tensor, size: float = 1.0) -> None:
        self.screen = Screen.of(head, small=True)
        norm = torch.full((SHAPE.hidden,), size)  # which is also that of what the head reads
        ends = EndWeights(table=table, head=head, norm=norm, eps=1e-6, screen=self.screen)
        self._model = NativeModel(
            library, native(library, PAPERS, SHAPE, page_count([512], 1), WeightKind.FLOAT32), ends
        )
        self._pages = page_table([512], spare=1, seed=0)

    def run(self, ids: Tensor, rows: list[int], *, tokens_only: bool) -> Logits:
        step = native_step([(0, 0, len(ids))], self._pages)
        found = self._model.run(ids.numpy(), np.array(rows), [COS], [SIN], step, tokens_only=tokens_only)
        return Logits(found.values.clone(), found.tokens.copy(), found.maxima.copy(), found.totals.copy())

    def screens(self, ids: Tensor) -> bool:
        """Return whether the next step is screened: log-probabilities are missing then."""
        found = self.run(ids, [0], tokens_only=True)
        return bool(found.totals[0] == found.maxima[0])

    def agrees(self, ids: Tensor, rows: list[int]) -> Logits:
        """Check that tokens and logits are those of the whole head; return what was found."""
        exact, screened = (self.run(ids, rows, tokens_only=only) for only in (False, True))
        assert screened.tokens.tolist() == exact.tokens.tolist()
        assert np.array_equal(screened.maxima, exact.maxima, equal_nan=True)
        return screened


def embeddings(seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(WORDS, SHAPE.hidden, generator=torch.Generator().manual_seed(seed))


def ids_of(count: int, seed: int = 0) -> Tensor:
    return torch.randint(WORDS, (count,), generator=torch.Generator().manual_seed(seed))


@each_form
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("count", [1, 5, 13, 60, 100])
def test_it_finds_what_the_whole_head_finds(library: Library, form: str, threads: int, count: int) -> None:
    library = LIBRARIES[library.isa, threads]
    made = Made(library, pack(library, random_head(1), form), embeddings(2))
    ids = ids_of(count)
    made.agrees(ids, list(range(count)))
    assert made.screens(ids[:1])


@EXACTLY
@given(data=st.data())
def test_it_finds_the_same_whatever_rows_of_the_head_are_like(data: st.DataObject) -> None:
    weight = random_head(data.draw(st.integers(0, 50))).float()
    for _ in range(data.draw(st.integers(0, 6))):  # ties, near ties, and rows that are much larger or nothing
        row, other = (data.draw(st.integers(0, WORDS - 1)) for _ in range(2))
        weight[row] = weight[other] * data.draw(st.sampled_from([1.0, 1.0, 1.001, 0.0, -1.0, 40.0, 1e-6]))
    weight[:, data.draw(st.integers(0, SHAPE.hidden - 1))] *= data.draw(st.sampled_from([1.0, 30.0, 1e4]))
    library, form = data.draw(st.sampled_from(FORMS_OF))
    table = embeddings(data.draw(st.integers(0, 50)), data.draw(st.sampled_from([1e-3, 1.0, 1e3])))
    made = Made(library, pack(library, weight, form), table)
    count = data.draw(st.integers(1, 20))
    rows = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=8)))
    made.agrees(ids_of(count, data.draw(st.integers(0, 99))), rows)


@each_form
@pytest.mark.parametrize("size", [1e-33, 1e-30, 1e-28, 1e-22, 1e-18, 1e-14, 1e-10, 1e6, 1e16, 1e30])
def test_it_finds_the_same_however_small_or_large_the_inputs_are(
    library: Library, form: str, size: float
) -> None:
    head = pack(library, random_head(13), form)
    Made(library, head, embeddings(14), size).agrees(ids_of(40), list(range(40)))


@each_form
@pytest.mark.parametrize("size", [1e-30, 1e-26, 1e-24, 1e-21, 1e-18, 1e-10, 1e10])
def test_it_finds_the_same_however_small_or_large_the_head_is(
    library: Library, form: str, size: float
) -> None:
    head = pack(library, random_head(13).float() * size, form)
    Made(library, head, embeddings(14), 1e6).agrees(ids_of(40), list(range(40)))


@pytest.mark.parametrize(("library", "form"), [each for each in FORMS_OF if each[1] in KINDS], ids=repr)
@pytest.mark.parametrize("gap", [0, 40, 46, 47, 48, 49, 70, 80, 88, 90, 92, 93, 94])
def test_it_finds_the_same_where_all_that_rounding_takes_points_one_way(
    library: Library, form: str, gap: int
) -> None:
    """A few rows lose as much as rounding can take of them, as many gain it: the bound is nearly met."""
    random = torch.Generator().manual_seed(9)
    signs = torch.where(torch.rand(SHAPE.hidden, generator=random) < 0.5, -1.0, 1.0)
    step = 4 if form == "int8" else 1
    most = 127 // step
    weight = torch.randint(-most // 2, most // 2, (WORDS, SHAPE.hidden), generator=random).float()
    weight[:, 0] = -most * signs[0]  # so that the scale is 1
    for _ in range(2):  # have the integers' products with the input be 0
        excess = (weight[:, 1:] * signs[1:]).sum(1) - most
        weight[:, 1:] -= (excess / (SHAPE.hidden - 1)).round()[:, None] * signs[1:]
    weight[:, 1] -= ((weight[:, 1:] * signs[1:]).sum(1) - most) * signs[1]
    weight[:, 1] = weight[:, 1].clamp(1 - most, most - 1)
    losing, gaining, others = torch.randperm(WORDS, generator=random).split([30, 30, WORDS - 60])
    weight[others[:, None], torch.arange(2, 42)] -= most / 6 * signs[2:42]  # far from the greatest
    weight[losing, 1 : 1 + gap] -= signs[1 : 1 + gap]
    off = 0.49 if form == "float32" else 0.25  # a number in int8, of the four between those of int6
    weight[losing, 1:] += off * signs[1:]
    weight[gaining, 1:] -= off * signs[1:]
    head = pack(library, weight * 0.01, form)
    if form == "int8":
        rows = (weight * step).to(torch.int8)
        head = PackedLinear.of_integers(library, rows, torch.full((WORDS,), 0.01), WeightKind.INT8)
    table = (1e5 * signs).expand(WORDS, -1).contiguous()
    made = Made(library, head, table)
    found = made.agrees(ids_of(8), list(range(8)))
    assert made.screens(ids_of(1))
    assert set(found.tokens.tolist()) <= set((losing if gap < 2 * off * 95 else gaining).tolist())


@each_isa
def test_after_it_has_left_too_much_it_rests_for_a_while(library: Library) -> None:
    table = embeddings(15)
    table[11] = torch.nan
    made = Made(library, pack(library, random_head(16), COMPRESSED), table)
    good, bad = torch.tensor([1]), torch.tensor([11])
    assert made.screens(good)
    made.run(bad, [0], tokens_only=True)
    assert not made.screens(good)
    with patch("inference.kernels.native_model._REST_STEPS", 2):
        for _ in range(300):
            made.run(good, [0], tokens_only=True)
        assert made.screens(good)
        made.run(bad, [0], tokens_only=True)
        assert [made.screens(good) for _ in range(3)] == [False, True, True]


@each_isa
def test_of_equal_logits_the_first_token_counts(library: Library) -> None:
    weight = random_head(3)
    weight[[50, 3_000, 6_999]] = 3 * weight[[3_000]]
    made = Made(library, pack(library, weight, COMPRESSED), embeddings(4))
    found = made.agrees(ids_of(40), list(range(40)))
    assert not {3_000, 6_999} & set(found.tokens.tolist())


@each_isa
def test_rows_of_which_too_much_is_left_are_computed_in_full(library: Library) -> None:
    same = random_head(5)[:1].expand(WORDS, -1).contiguous()
    made = Made(library, pack(library, same, "bfloat16"), embeddings(6))
    found = made.agrees(ids_of(9), list(range(9)))
    assert found.tokens.tolist() == [0] * 9


@each_isa
def test_a_row_that_is_not_finite_says_so_and_touches_no_other(library: Library) -> None:
    table = embeddings(7)
    table[11, 5] = torch.nan
    made = Made(library, pack(library, random_head(8), COMPRESSED), table)
    ids = torch.tensor([1, 2, 3, 11])  # attention looks back only: the last one alone is broken
    found = made.agrees(ids, [0, 1, 2, 3])
    assert np.isnan(found.maxima).tolist() == [False, False, False, True]


@each_isa
def test_without_being_asked_all_logits_are_there(library: Library) -> None:
    made = Made(library, pack(library, random_head(9), COMPRESSED), embeddings(10))
    found = made.run(ids_of(3), [0, 2], tokens_only=False)
    assert found.values.argmax(1).tolist() == found.tokens.tolist()
    assert (found.totals > found.maxima).all()


@each_form
def test_its_bounds_hold_for_each_row_of_the_head(library: Library, form: str) -> None:
    head = pack(library, random_head(11), form)
    screen = Screen.of(head, small=True)
    assert screen is not None
    rounded = screen.linear.unpack().double()
    lost = (head.unpack().double() - rounded).norm(dim=1)
    assert (lost <= screen.errors[:WORDS].double() * 1.001).all()
    assert (rounded.norm(dim=1) <= screen.norms[:WORDS].double() * 1.001).all()
    share = 0.75 if form == "int8" else 1.0
    assert screen.nbytes < share * 1.1 * WORDS * SHAPE.hidden + 150_000


@each_isa
def test_its_memory_is_reserved_where_it_may_come(library: Library) -> None:
    described = LlamaConfig(vocab_size=60_000, hidden_size=128)
    capped = Gemma2Config(vocab_size=60_000, hidden_size=128, final_logit_softcapping=30.0)
    wanted = EngineConfig()
    assert screen_bytes(wanted, library, described) == 60_000 * (128 + 16)
    assert screen_bytes(wanted, library, LlamaConfig(vocab_size=600, hidden_size=128)) == 0
    assert screen_bytes(wanted, library, PreTrainedConfig(vocab_size=60_000)) == 0  # its width isn't told
    assert screen_bytes(wanted, library, capped) == screen_bytes(wanted, None, described) == 0
    for without in (replace(wanted, screen_head=False), replace(wanted, fuse_layers=False)):
        assert screen_bytes(without, library, described) == 0


@pytest.mark.parametrize(
    ("words", "width", "share"),
    [(60_000, 128, 0), (600_000, 128, 0.75), (60_000, 1408, 0.75), (60_000, 1536, 0)],
)
@each_isa
def test_of_int8_only_large_heads_of_narrow_models_are_screened(
    library: Library, words: int, width: int, share: float
) -> None:
    wanted = EngineConfig(model=ModelConfig(quantize="int8"))
    described = LlamaConfig(vocab_size=words, hidden_size=width)
    expected = words * (share * width + 16) if share and library.has_vnni else 0
    assert screen_bytes(wanted, library, described) == expected


@each_isa
def test_what_is_reserved_is_what_it_takes(library: Library) -> None:
    head = PackedLinear.pack(library, torch.randn(40_000, 128), None, WeightKind.FLOAT32)
    screen = Screen.of(head)
    assert screen is not None
    assert screen.nbytes == screen_bytes(
        EngineConfig(), library, LlamaConfig(vocab_size=40_000, hidden_size=128)
    )


@each_isa
def test_a_head_is_screened_only_where_that_is_of_use(library: Library) -> None:
    weight = random_head(12).float()
    assert Screen.of(PackedLinear.pack(library, weight, None, WeightKind.FLOAT32)) is None  # too small
    biased = PackedLinear.pack(library, weight, torch.ones(WORDS), WeightKind.FLOAT32)
    assert Screen.of(biased, small=True) is None
    integers = Screen.of(PackedLinear.pack(library, weight, None, WeightKind.INT8), small=True)
    assert (integers is not None) == library.has_vnni  # six bits need it
    wide = PackedLinear.pack(library, torch.randn(900, 4096), None, WeightKind.INT8)
    assert Screen.of(wide, small=True) is None  # six bits would leave too much
    if library.has_vnni:
        six = PackedLinear.pack(library, weight, None, WeightKind.INT6)
        assert Screen.of(six, small=True) is None
    weight[5, 5] = torch.inf
    assert Screen.of(PackedLinear.pack(library, weight, None, WeightKind.FLOAT32), small=True) is None
    without = [each for each in LIBRARIES.values() if not each.screens]
    assert all(Screen.of(pack(each, random_head(1), "float32"), small=True) is None for each in without)


@each_isa
def test_it_finds_the_same_where_all_that_rounding_takes_of_the_input_points_one_way(
    library: Library,
) -> None:
    """The head is exact in 8 bits; a row that comes second by the copy is first by what it leaves out."""
    random = torch.Generator().manual_seed(10)
    signs = torch.tensor([1.0, -1.0]).repeat(SHAPE.hidden // 2)
    read = torch.randint(-20, 20, (SHAPE.hidden // 2,), generator=random).float().repeat_interleave(2)
    read[:2], signs[:2] = torch.tensor([127.0, 0.0]), 0.0  # so that the scale is 1
    weight = torch.randint(-9, 10, (WORDS, SHAPE.hidden), generator=random).float()
    weight[:, 0] = -127
    weight[50], weight[3_000] = 100 * signs, -100 * signs
    weight[50, 0], weight[3_000, 0], weight[[50, 3_000], 1] = 72, 127, 127
    table = (1e5 * (read + 0.49 * signs)).expand(WORDS, -1).contiguous()
    made = Made(library, PackedLinear.pack(library, weight * 0.01, None, WeightKind.FLOAT32), table)
    assert made.agrees(ids_of(8), list(range(8))).tokens.tolist() == [50] * 8
    assert made.screens(ids_of(1))
