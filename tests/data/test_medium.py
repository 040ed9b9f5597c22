"""Pictures and sounds, as files, in memory and in folders: what is read, and what is refused."""

import io
import struct
import wave
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from attnscope.core.errors import RefusalError
from attnscope.data.medium import Picture, Sound, medium, names_medium
from attnscope.data.read import gallery


def png_header(width: int, height: int) -> bytes:
    """Return a PNG header with a size, without pixel data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def wav(path: Path, samples: np.ndarray, rate: int = 8000, channels: int = 1) -> Path:
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(samples.dtype.itemsize)
        sound.setframerate(rate)
        sound.writeframes(samples.tobytes())
    return path


def test_a_picture_by_name_path_image_and_array_is_the_same(tmp_path: Path) -> None:
    pixels = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
    file = tmp_path / "photo.png"
    Image.fromarray(pixels).save(file)
    for given in (str(file), file, Image.fromarray(pixels), pixels, pixels / 255):
        found = medium(given)
        assert isinstance(found, Picture)
        assert found.size == (4, 5)
        assert np.array_equal(np.asarray(found.image), pixels)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK", "I;16", "F"])
def test_every_kind_of_pixel_becomes_colours(tmp_path: Path, mode: str) -> None:
    grey = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4) * 16)
    image = (
        Image.fromarray(np.arange(16, dtype=np.uint16).reshape(4, 4) * 4000) if mode == "I;16" else grey.convert(mode)
    )
    found = medium(image)
    assert isinstance(found, Picture)
    assert found.image.mode == "RGB"
    numbers = np.asarray(found.image)
    assert numbers.min() < numbers.max()


def test_transparent_pixels_become_white() -> None:
    found = medium(Image.new("RGBA", (2, 2), (255, 0, 0, 0)))
    assert isinstance(found, Picture)
    assert np.asarray(found.image).min() == 255


def test_a_sound_of_one_and_of_two_channels(tmp_path: Path) -> None:
    tone = (10000 * np.sin(np.arange(800) / 5)).astype(np.int16)
    one = medium(wav(tmp_path / "one.wav", tone))
    two = medium(wav(tmp_path / "two.wav", np.repeat(tone, 2), channels=2))
    assert isinstance(one, Sound)
    assert isinstance(two, Sound)
    assert one.rate == 8000
    assert np.allclose(one.samples, tone / 32768)
    assert np.allclose(two.samples, one.samples, atol=1e-6)
    faster = one.at_rate(16000)
    assert len(faster) == 2 * len(one.samples)
    # 255 Hz is far below half of either rate, so every other sample equals the original, except at the ends.
    assert np.abs(faster[::2] - one.samples)[50:-50].max() < 1e-3
    silence = medium(wav(tmp_path / "bytes.wav", np.full(10, 128, dtype=np.uint8)))
    assert isinstance(silence, Sound)
    assert not silence.samples.any()


def test_texts_are_neither_pictures_nor_sounds(tmp_path: Path) -> None:
    for text in ("a text", "", "see photo.png", "a\nb.png", "x" * 3000 + ".png", {"input_ids": 1}, None, 5):
        assert medium(text) is None
    assert names_medium("photo.png")
    assert not names_medium("my photo.png")  # a name with a space is a medium only if the file exists
    Image.new("RGB", (2, 2)).save(tmp_path / "my photo.png")
    assert names_medium(str(tmp_path / "my photo.png"))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.png", b"no picture at all", "is not a picture that can be read"),
        ("a.png", b"", "is not a picture that can be read"),
        ("a.jpg", b"\xff\xd8\xff\xe0" + b"\0" * 40, "is not a picture that can be read"),
        ("bomb.png", png_header(60000, 60000), "unpacks to"),
        ("large.png", png_header(12000, 12000), "unpacks to 12000 x 12000 pixels"),
        ("a.wav", b"RIFF\x10\0\0\0WAVEfmt ", "is not a whole WAV file"),
        ("a.mp3", b"ID3", "is not a WAV file"),
        ("a.wav", b"text", "is not a WAV file"),
    ],
)
def test_unreadable_files_are_refused(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(RefusalError, match=says):
        medium(file)


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="There is no file"):
        medium("nowhere.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(RefusalError, match="is a folder"):
        medium(tmp_path / "folder.png")


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros((2, 3, 4, 5)), "is neither a picture"),
        (np.zeros((4, 4, 7)), "is neither a picture"),
        (np.full((4, 4), 2.0), "hold values from 0 to 1"),
        (np.full((4, 4), 300), "hold values from 0 to 255"),
        (np.array([0.0, np.nan]), "not finite"),
        (np.array(["a"]), "is neither a picture nor a sound"),
        (np.zeros((0, 3)), "is neither a picture nor a sound"),
    ],
)
def test_arrays_that_are_neither_pictures_nor_sounds_are_refused(array: Any, says: str) -> None:
    with pytest.raises(RefusalError, match=says):
        medium(array)


def test_a_truncated_picture_is_refused() -> None:
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(stream, "PNG")
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "half.png"
        file.write_bytes(stream.getvalue()[: len(stream.getvalue()) // 2])
        with pytest.raises(RefusalError, match="is not a picture that can be read"):
            medium(file)


def folder(place: Path, *names: str) -> Path:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"-")
    return place


def test_pictures_in_the_order_of_their_names_also_below(tmp_path: Path) -> None:
    found = gallery(folder(tmp_path, "b.png", "a.JPG", "more/c.webp", "notes.pdf", ".hidden.png"))
    assert found is not None
    assert [file.name for file in found.files] == ["a.JPG", "b.png", "c.webp"]
    assert found.name == tmp_path.name


def test_one_file_is_a_corpus_too(tmp_path: Path) -> None:
    found = gallery(str(folder(tmp_path, "speech.wav") / "speech.wav"))
    assert found is not None
    assert found.name == "speech.wav"


@pytest.mark.parametrize("names", [("a.txt", "b.png"), ("a.jsonl.gz",), ("notes.pdf",), ()])
def test_folder_with_texts_is_a_corpus_of_texts(names: tuple[str, ...], tmp_path: Path) -> None:
    assert gallery(folder(tmp_path, *names)) is None


@pytest.mark.parametrize("source", [None, "-", "", "no such folder", "s3://bucket/photos", ["a text"]])
def test_gallery_of_something_else_is_none(source: object) -> None:
    assert gallery(source) is None


def test_two_kinds_in_one_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="pictures and sounds: give a folder of one kind"):
        gallery(folder(tmp_path, "a.png", "b.wav"))


def test_a_draw_depends_on_the_seed_alone_and_keeps_the_order(tmp_path: Path) -> None:
    found = gallery(folder(tmp_path, *(f"{number:02}.png" for number in range(20))))
    assert found is not None
    drawn = found.drawn(5, 0)
    assert drawn == found.drawn(5, 0)
    assert drawn != found.drawn(5, 1)
    assert list(drawn) == sorted(set(drawn))
    assert len(drawn) == 5
    assert found.drawn(None, 0) == found.drawn(20, 0) == found.files
