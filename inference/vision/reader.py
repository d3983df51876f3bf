"""The engine's end of the process that reads image files."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import inference
from inference.environment import bare_environment
from inference.errors import InvalidImage
from inference.vision.reading import HEAD, SIZE

READ_SECONDS = 10.0  # that one file may take


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An image as it is to be seen."""

    pixels: NDArray[np.uint8]  # (height, width, 3): red, green, blue


class ImageReader:
    """Starts the process when there is something to read, and again when it has ended; for one thread."""

    def __init__(self, seconds: float = READ_SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, data: bytes) -> Picture:
        """Return what a file shows; raise InvalidImage."""
        process = self._started()
        ended = threading.Event()

        def end() -> None:
            ended.set()
            process.kill()

        late = threading.Timer(self._seconds, end)
        late.start()
        try:
            read, content, width, height = _ask(process, data)
        except (EOFError, BrokenPipeError) as error:
            self.close()
            raise InvalidImage("its decoder failed, or took too long or too much memory") from error
        finally:
            late.cancel()
            late.join()
            if ended.is_set():  # maybe when this file had been read: the next one must not suffer
                self.close()
        if not read:
            raise InvalidImage(content.decode(errors="replace"))
        return Picture(np.frombuffer(content, dtype=np.uint8).reshape(height, width, 3))

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "inference.vision.reading"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # decoders write what strangers wrote
                env=bare_environment(inference),
            )
        return self._process


def _ask(process: subprocess.Popen[bytes], data: bytes) -> tuple[bool, bytes, int, int]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(SIZE.pack(len(data)) + data)
    process.stdin.flush()
    head = process.stdout.read(HEAD.size)
    if len(head) < HEAD.size:
        raise EOFError("the process has ended")
    read, size, width, height = HEAD.unpack(head)
    content = process.stdout.read(size)
    if len(content) < size:
        raise EOFError("the process has ended")
    return read, content, width, height
