"""Experts are rounded on as many threads as torch has, each with one of torch's."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Barrier

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from codegen.toys import toy_config  # noqa: E402
from inference.loading.classes import model_class  # noqa: E402
from inference.loading.keeping_experts import KeptExperts, on_threads, round_experts  # noqa: E402
from inference.models.quantised_experts import expert_codes  # noqa: E402
from inference.models.weights import expert_weights  # noqa: E402
from inference.quantised.codes import Codes  # noqa: E402
from inference.quantised.rounding4 import round_rows  # noqa: E402


@pytest.fixture(autouse=True)
def threads() -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)


def test_two_experts_are_rounded_at_once_by_one_thread_of_torch_each() -> None:
    own, both = model_class(toy_config("qwen3_moe")), Barrier(2)
    assert own is not None
    model = own(toy_config("qwen3_moe"))
    paths = tuple(path for path, module in model.named_modules() if expert_weights(module))
    expected = {
        (path, name): [round_rows(each, "nf4").expand() for each in weights.detach()]
        for path in paths
        for name, weights in expert_weights(model.get_submodule(path)).items()
    }

    def rounds(weight: Tensor) -> Codes:
        both.wait(timeout=20)  # nobody comes where they are rounded one after the other
        assert torch.get_num_threads() == 1
        assert torch.is_inference_mode_enabled()
        return round_rows(weight, "nf4")

    round_experts(model, KeptExperts(rounded=paths), rounds, torch.float32)
    assert paths
    for (path, name), weights in expected.items():
        found = expert_codes(model.get_submodule(path))[name]
        assert all(torch.equal(own.expand(), each) for own, each in zip(found, weights, strict=True))


def test_torch_has_as_many_threads_as_before_when_all_are_done(threads: int) -> None:
    def fail(number: int) -> None:
        raise ValueError(number)

    with pytest.raises(ValueError, match=r"^1$"):
        on_threads(fail, [1])
    assert on_threads(lambda number: number * 2, range(5)) == [0, 2, 4, 6, 8]
    with_one = on_threads(lambda number: torch.get_num_threads(), range(5))
    assert (with_one, torch.get_num_threads()) == ([1] * 5, threads)
