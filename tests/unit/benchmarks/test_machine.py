"""What results are named after."""

import pytest

from benchmarks import machine

CPUS = {
    "fma avx2 avx512f avx512bw amx_tile amx_int8 amx_bf16": "some-cpu-2-cores-amx",
    "fma avx2 avx512f avx512bw amx_tile": "some-cpu-2-cores-avx512",
    "fma avx2 avx512f avx512bw": "some-cpu-2-cores-avx512",
    "fma avx2 avx512f": "some-cpu-2-cores-avx2",
    "sse2": "some-cpu-2-cores",
}


@pytest.mark.parametrize(("flags", "name"), CPUS.items())
def test_cpus_with_other_vectors_are_other_machines(
    flags: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"model name": "Some CPU", "flags": flags, "cpu family": "6"}
    monkeypatch.setattr(machine, "_information", known.__getitem__)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    assert name == machine.machine()


@pytest.mark.parametrize(
    ("name", "told"),
    [("AMD EPYC", "amd-epyc-of-family-26-4-cores"), ("AMD EPYC 9654", "amd-epyc-9654-4-cores")],
)
def test_a_cpu_that_says_no_more_than_its_brand_is_told_by_its_family(
    name: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"model name": name, "flags": "", "cpu family": "26"}
    monkeypatch.setattr(machine, "_information", known.__getitem__)
    monkeypatch.setattr(machine, "cores", lambda: 4)
    assert told == machine.machine()
