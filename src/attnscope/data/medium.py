"""Read a picture or a sound for a model, from a file or from memory.

    medium("photo.png")   medium(Path("speech.wav"))   medium(PIL_image)   medium(array)   medium("a text") is None

The first bytes of a file decide what it is, not its name. Pictures need Pillow; sounds are WAV files, which scipy
reads. Both are read with a bound: a few bytes of PNG can unpack to gigabytes.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from attnscope.core.errors import RefusalError
from attnscope.core.files import read_all
from attnscope.core.opening import opened
from attnscope.data.formats import refuse_name_of_file, text_of_file

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
SOUND_SUFFIXES = (".wav",)
OTHER_SOUNDS = (".mp3", ".flac", ".ogg", ".m4a", ".aac", ".opus")
MOST_PIXELS = 1 << 27  # 134 million: more than the largest cameras have; 400 MB unpacked
MOST_BYTES = 1 << 29
_LONGEST_NAME = 1024
_BEGINNINGS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"RIFX", b"RF64", b"II*\0", b"MM\0*")


@dataclass(frozen=True)
class Picture:
    image: Any  # a PIL image in RGB
    name: str

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        width, height = self.image.size
        return int(width), int(height)


@dataclass(frozen=True)
class Sound:
    samples: Float[np.ndarray, " sample"]  # between -1 and 1, one channel
    rate: int | None  # samples per second; None means the model's own rate
    name: str

    def at_rate(self, wanted: int) -> Float[np.ndarray, " sample"]:
        """Resample the sound to the model's sampling rate."""
        if self.rate is None or self.rate == wanted:
            return self.samples
        from math import gcd

        from scipy.signal import resample_poly

        shared = gcd(self.rate, wanted)
        made: Any = resample_poly(self.samples.astype(np.float64), wanted // shared, self.rate // shared)
        return np.asarray(made, dtype=np.float32)


Medium = Picture | Sound


def medium(source: Any) -> Medium | None:
    """Return the picture or sound that `source` is, or that it names; None for texts and anything else."""
    if isinstance(source, Picture | Sound):
        return source
    if isinstance(source, Path) and (names_medium(str(source)) or _begins_as_medium(source)):
        return _of_file(source)
    if isinstance(source, str) and names_medium(source):
        return _of_file(Path(source))
    if type(source).__module__.partition(".")[0] == "PIL":
        return Picture(_in_colour(source), "a picture in memory")
    return _of_array(source) if isinstance(source, np.ndarray) else None


def readable(source: Any) -> Any:
    """Return an input, or a tuple of two, with paths of text files replaced by their content. Refuse empty texts,
    missing files and unreadable pictures before a model is loaded."""
    if isinstance(source, tuple):
        return tuple(readable(side) for side in source)
    if isinstance(source, Path) and medium(source) is None:
        source = text_of_file(source)
    elif isinstance(source, str) and medium(source) is None:
        refuse_name_of_file(source)
    if isinstance(source, str) and not source.strip():
        raise RefusalError("The text is empty: give at least two tokens of it.")
    return source


def names_medium(text: str) -> bool:
    """Return whether a string is the name of a picture or a sound rather than a text."""
    if not text.strip() or len(text) >= _LONGEST_NAME or "\n" in text or "\0" in text:
        return False
    path = Path(text)
    known = path.suffix.lower() in (*PICTURE_SUFFIXES, *SOUND_SUFFIXES, *OTHER_SOUNDS)
    try:
        return known and (path.is_file() or not any(character.isspace() for character in text))
    except OSError:
        return False


def _begins_as_medium(path: Path) -> bool:
    """Return whether a file begins like a picture or a sound. Return False for a pipe, which can only be read once."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            return stream.read(4).startswith(_BEGINNINGS)
    except OSError:
        return False


def _of_file(path: Path) -> Medium:
    if path.is_dir():
        raise RefusalError(f"'{path}' is a folder: give one picture or sound.")
    try:
        with opened(path) as stream:
            data = read_all(stream, str(path), MOST_BYTES)
    except FileNotFoundError:
        raise RefusalError(f"There is no file '{path}': give the name of an existing picture or sound.") from None
    except OSError as error:
        raise RefusalError(f"'{path}' cannot be read ({error.strerror or error}): check its permissions.") from None
    if data[:4] in (b"RIFF", b"RIFX", b"RF64") and data[8:12] == b"WAVE":
        return _wav(data, path)
    if path.suffix.lower() in (*SOUND_SUFFIXES, *OTHER_SOUNDS):
        made = f"{path.stem}.wav" if path.suffix.lower() not in SOUND_SUFFIXES else f"{path.stem}-converted.wav"
        raise RefusalError(
            f"'{path}' is not a WAV file, the only sound format that is read: convert it, for example with ffmpeg -i "
            f"{path.name} {made}."
        )
    return _picture(data, path)


def _picture(data: bytes, path: Path) -> Picture:
    image_module = pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about large pictures; the size is checked below
            opened = image_module.open(io.BytesIO(data))
            width, height = opened.size
            if width * height > MOST_PIXELS:
                raise RefusalError(
                    f"'{path}' unpacks to {width} x {height} pixels, more than the {MOST_PIXELS / 1e6:.0f} million "
                    "that are read: scale it down first (models read a few hundred in each direction)."
                )
            return Picture(_in_colour(opened), str(path))
    except RefusalError:
        raise
    except image_module.DecompressionBombError:
        most = f"{MOST_PIXELS / 1e6:.0f} million pixels"
        raise RefusalError(f"'{path}' unpacks to more than the {most} that are read: scale it down first.") from None
    except Exception as error:  # damaged files make decoders raise all kinds of exceptions
        raise RefusalError(
            f"'{path}' is not a picture that can be read ({type(error).__name__}): give a PNG or JPEG file."
        ) from None


def pillow() -> Any:
    """Return PIL.Image, or refuse and say how to install it."""
    try:
        from PIL import Image
    except ImportError:
        raise RefusalError("Reading pictures needs Pillow: pip install 'attnscope[images]'.") from None
    return Image


def _in_colour(image: Any) -> Any:
    """Return an image in RGB, rotated as its EXIF data says, with white for transparent areas."""
    from PIL import Image, ImageOps

    turned = ImageOps.exif_transpose(image)
    if turned.mode.startswith(("I", "F")):  # scale 16 bits and more down to 8
        numbers = np.asarray(turned, dtype=np.float64)
        low, high = float(numbers.min()), float(numbers.max())
        turned = Image.fromarray(np.uint8(255 * (numbers - low) / ((high - low) or 1.0)))
    if turned.mode in ("RGBA", "LA", "PA") or "transparency" in turned.info:
        turned = turned.convert("RGBA")
        ground = Image.new("RGBA", turned.size, (255, 255, 255, 255))
        turned = Image.alpha_composite(ground, turned)
    return turned.convert("RGB")


def _of_array(array: np.ndarray) -> Medium:
    if not np.issubdtype(array.dtype, np.number) or not array.size:
        raise RefusalError(f"An array of {array.dtype} with shape {array.shape} is neither a picture nor a sound.")
    floating = np.issubdtype(array.dtype, np.floating)
    if floating and not np.isfinite(array).all():
        raise RefusalError("The array holds numbers that are not finite: give a picture or sound without them.")
    if array.ndim == 1:
        return Sound(_as_samples(array), None, "samples in memory")
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[2] in (1, 3, 4)):
        raise RefusalError(
            f"An array with shape {array.shape} is neither a picture (row, column, 3 colours) nor a sound (samples): "
            "give one."
        )
    if floating and (array.min() < 0 or array.max() > 1):
        raise RefusalError("A floating-point picture must hold values from 0 to 1: scale it, or give bytes (uint8).")
    if not floating and (array.min() < 0 or array.max() > 255):
        raise RefusalError("An integer picture must hold values from 0 to 255: scale it.")
    flat = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    pixels = (np.round(255 * flat) if floating else flat).astype(np.uint8)
    return Picture(_in_colour(pillow().fromarray(pixels)), "an array in memory")


def _wav(data: bytes, path: Path) -> Sound:
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scipy warns about unknown chunks
            rate, samples = wavfile.read(io.BytesIO(data))
    except Exception as error:
        raise RefusalError(f"'{path}' is not a whole WAV file ({type(error).__name__}): convert it again.") from None
    if not samples.size or rate <= 0:
        raise RefusalError(f"'{path}' has no samples: give a longer sound.")
    if np.issubdtype(samples.dtype, np.floating) and not np.isfinite(samples).all():
        raise RefusalError(f"'{path}' holds samples that are not finite: save it again.")
    mono = samples if samples.ndim == 1 else samples.astype(np.float64).mean(1).astype(np.float64)
    return Sound(_as_samples(mono, samples.dtype), int(rate), str(path))


def _as_samples(numbers: np.ndarray, stored: np.dtype[Any] | None = None) -> Float[np.ndarray, " sample"]:
    """Scale bytes (128 is silence) or integers to the range -1 to 1; leave floating-point samples unchanged."""
    kind = numbers.dtype if stored is None else stored
    if kind == np.uint8:
        numbers = (numbers.astype(np.float64) - 128) / 128
    elif not np.issubdtype(kind, np.floating):
        numbers = numbers.astype(np.float64) / (float(np.iinfo(kind).max) + 1)
    return np.asarray(numbers, dtype=np.float32)
