"""The engine's socket: nobody else can reach it, and what comes is data of declared types and sizes."""

from __future__ import annotations

import os
import pickle
import re
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inference.ipc.framing import FrameFault, Unframer, unpack
from inference.process.address import Address

ROOT = Path(__file__).parent.parent.parent
# `weights_only` reads tensors, and runs nothing
UNSAFE = re.compile(
    r"^\s*(?:import|from) (?:pickle|marshal|shelve|dill|cloudpickle|multiprocessing)\b"
    r"|\btorch\.load\((?![^()]*\bweights_only=True\))|\byaml\.unsafe_load\(|(?<![.\w])eval\(|(?<![.\w])exec\(|shell=True|os\.system\(",
    re.MULTILINE,
)


class Running:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/nowhere/at/all",)


def test_nothing_that_is_shipped_reads_pickles_or_runs_text() -> None:
    files = [path for part in ("handlers", "inference", "openapi") for path in (ROOT / part).rglob("*.py")]
    assert len(files) > 100
    found = [(path.name, hit[0]) for path in files for hit in UNSAFE.finditer(path.read_text())]
    assert found == []


def test_a_pickle_on_the_socket_is_a_fault() -> None:
    decoder = msgspec.msgpack.Decoder(dict[str, int])
    for payload in (pickle.dumps(Running()), pickle.dumps({"a": 1}), b"\x93" * 100_000, b"\xc1", b""):
        with pytest.raises(FrameFault):
            unpack(decoder, payload)


def test_a_frame_that_promises_gigabytes_is_refused_before_they_come() -> None:
    with pytest.raises(FrameFault, match="4294967295"):
        Unframer(1000).feed(b"\xff\xff\xff\xff")


def test_the_socket_is_in_a_directory_that_only_its_user_can_enter() -> None:
    address = Address()
    try:
        assert stat.S_IMODE(address.directory.stat().st_mode) == 0o700
        assert address.directory.stat().st_uid == os.getuid()
        assert Path(address.path).parent == address.directory
    finally:
        address.close()
    assert not address.directory.exists()
