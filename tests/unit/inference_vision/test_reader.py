"""Files of images: what is one is read as Pillow does, all else is refused, and nothing dies of it."""

from __future__ import annotations

import io
import struct
import subprocess
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from inference.errors import InvalidImage
from inference.vision import reader as reader_module
from inference.vision.reader import READ_SECONDS, ImageReader
from inference.vision.reading import FORMATS, MOST_PIXELS, MOST_TIMES

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)


def encoded(form: str, image: Image.Image | None = None, **options: Any) -> bytes:
    buffer = io.BytesIO()
    (image or Image.fromarray(PIXELS)).save(buffer, form, **options)
    return buffer.getvalue()


FILES = {form: encoded(form) for form in FORMATS}


def png_of(width: int, height: int) -> bytes:
    """Return a PNG file that says it has this size, and has no more than a few rows."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1 << 16))) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def reader() -> Iterator[ImageReader]:
    reader = ImageReader()
    yield reader
    reader.close()


@pytest.mark.parametrize("form", ["PNG", "TIFF", "BMP"])
def test_pixels_are_those_that_were_written(reader: ImageReader, form: str) -> None:
    np.testing.assert_array_equal(reader.read(FILES[form]).pixels, PIXELS)


@pytest.mark.parametrize("form", FORMATS)
def test_pixels_are_those_that_pillow_reads(reader: ImageReader, form: str) -> None:
    expected = np.asarray(Image.open(io.BytesIO(FILES[form])).convert("RGB"))
    np.testing.assert_array_equal(reader.read(FILES[form]).pixels, expected)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_any_mode_becomes_red_green_and_blue(reader: ImageReader, mode: str) -> None:
    image = Image.fromarray(PIXELS).convert("L" if mode == "I;16" else mode)
    form = "TIFF" if mode in ("CMYK", "I;16") else "PNG"
    image = image.convert(mode) if mode == "I;16" else image
    assert reader.read(encoded(form, image)).pixels.shape == (24, 32, 3)


def test_first_frame_counts(reader: ImageReader) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ((255, 0, 0), (0, 255, 0))]
    file = encoded("GIF", frames[0], save_all=True, append_images=frames[1:])
    assert (reader.read(file).pixels == (255, 0, 0)).all()


def test_photograph_is_turned_as_its_camera_was_held(reader: ImageReader) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: a quarter turn
    assert reader.read(encoded("JPEG", exif=exif)).pixels.shape == (32, 24, 3)


@pytest.mark.parametrize(
    "file",
    [b"", b"nonsense", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"P6 1 1 255\n\0\0\0", b"%!PS-Adobe-3.0 EPSF-3.0\n"],
    ids=["empty", "nonsense", "head alone", "GIF's head", "PPM", "PostScript"],
)
def test_what_is_no_image_is_refused(reader: ImageReader, file: bytes) -> None:
    with pytest.raises(InvalidImage, match=r"^invalid image: "):
        reader.read(file)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
def test_file_that_was_cut_is_refused(reader: ImageReader, form: str) -> None:
    with pytest.raises(InvalidImage, match=r"^invalid image: "):
        reader.read(FILES[form][: len(FILES[form]) // 2])


@pytest.mark.parametrize(
    ("width", "height"), [(100_000, 100_000), (MOST_PIXELS + 1, 1), (2**31 - 1, 2**31 - 1)]
)
def test_image_with_too_many_pixels_is_not_decoded(reader: ImageReader, width: int, height: int) -> None:
    with pytest.raises(InvalidImage, match=r"pixels|size"):
        reader.read(png_of(width, height))
    assert reader.read(FILES["PNG"]).pixels.shape == (24, 32, 3)


@pytest.mark.parametrize("turned", [False, True])
def test_image_that_is_a_line_is_not_decoded(reader: ImageReader, turned: bool) -> None:
    def read(width: int) -> tuple[int, ...]:
        size = (2, width) if turned else (width, 2)
        return reader.read(encoded("PNG", Image.new("RGB", size))).pixels.shape

    assert read(2 * MOST_TIMES)
    with pytest.raises(InvalidImage, match=rf"^invalid image: .* more than {MOST_TIMES} times the other"):
        read(2 * MOST_TIMES + 1)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    form=st.sampled_from(FORMATS), edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=6)
)
def test_damaged_file_is_read_or_refused(
    reader: ImageReader, form: str, edits: list[tuple[float, int]]
) -> None:
    file = bytearray(FILES[form])
    for where, value in edits:
        file[int(where * (len(file) - 1))] = value
    try:
        pixels = reader.read(bytes(file)).pixels
    except InvalidImage:
        pixels = PIXELS
    assert pixels.ndim == 3
    assert pixels.size <= 3 * MOST_PIXELS
    assert reader.read(FILES["PNG"]).pixels.shape == PIXELS.shape  # the next one is read as ever


def test_reader_that_has_died_is_started_again() -> None:
    reader = ImageReader()
    reader.read(FILES["PNG"])
    first = reader._process
    assert first is not None
    first.kill()
    first.wait()
    np.testing.assert_array_equal(reader.read(FILES["PNG"]).pixels, PIXELS)
    reader.close()


def test_reader_that_takes_too_long_is_ended() -> None:
    reader = ImageReader(seconds=0.0)
    with pytest.raises(InvalidImage, match="took too long"):
        reader.read(FILES["PNG"])
    assert reader._process is None


def test_reader_that_is_ended_behind_a_file_gives_it_and_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask(process: subprocess.Popen[bytes], data: bytes) -> tuple[bool, bytes, int, int]:
        answer = asked(process, data)
        process.wait()
        return answer

    asked = reader_module._ask
    reader = ImageReader()
    reader.read(FILES["PNG"])  # it has started
    reader._seconds = 1.0
    with monkeypatch.context() as patched:
        patched.setattr(reader_module, "_ask", ask)
        np.testing.assert_array_equal(reader.read(FILES["PNG"]).pixels, PIXELS)
    assert reader._process is None
    reader._seconds = READ_SECONDS
    np.testing.assert_array_equal(reader.read(FILES["PNG"]).pixels, PIXELS)
    reader.close()


def test_reader_knows_nothing_of_the_engines_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    reader = ImageReader()
    reader.read(FILES["PNG"])
    assert reader._process is not None
    with open(f"/proc/{reader._process.pid}/environ", "rb") as environment:
        assert b"secret" not in environment.read()
    reader.close()
