"""A picture or a sound that a model is to read: from a file, or from what Python has in memory.

    medium("photo.png")   medium(Path("speech.wav"))   medium(PIL_image)   medium(array)   medium("a text") is None

What a file is, its first bytes say, not its name. Pictures need Pillow; sounds are WAV files, which scipy reads. Both
are read with a bound: a few bytes of PNG can unpack to gigabytes.
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
from attnscope.data.formats import refuse_name_of_file, text_of_file

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
SOUND_SUFFIXES = (".wav",)
OTHER_SOUNDS = (".mp3", ".flac", ".ogg", ".m4a", ".aac", ".opus")
MOST_PIXELS = 1 << 27  # 134 million: the largest cameras, and 400 MB unpacked
MOST_BYTES = 1 << 29
_LONGEST_NAME = 1024
_BEGINNINGS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"RIFX", b"RF64", b"II*\0", b"MM\0*")


@dataclass(frozen=True)
class Picture:
    image: Any  # of PIL, in RGB
    name: str

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        width, height = self.image.size
        return int(width), int(height)


@dataclass(frozen=True)
class Sound:
    samples: Float[np.ndarray, " sample"]  # between -1 and 1, one channel
    rate: int | None  # samples in a second; None: those that the model wants
    name: str

    def at_rate(self, wanted: int) -> Float[np.ndarray, " sample"]:
        """The same sound with as many samples in a second as a model wants."""
        if self.rate is None or self.rate == wanted:
            return self.samples
        from math import gcd

        from scipy.signal import resample_poly

        shared = gcd(self.rate, wanted)
        made: Any = resample_poly(self.samples.astype(np.float64), wanted // shared, self.rate // shared)
        return np.asarray(made, dtype=np.float32)


Medium = Picture | Sound


def medium(given: Any) -> Medium | None:
    """What `given` is or names; None for texts, and for all that is neither."""
    if isinstance(given, Picture | Sound):
        return given
    if isinstance(given, Path) and (names_medium(str(given)) or _begins_as_medium(given)):
        return _of_file(given)
    if isinstance(given, str) and names_medium(given):
        return _of_file(Path(given))
    if type(given).__module__.partition(".")[0] == "PIL":
        return Picture(_in_colour(given), "a picture in memory")
    if isinstance(given, np.ndarray):
        return _of_array(given)
    return None


def readable(given: Any) -> Any:
    """An input, or a tuple of two, with the texts of files in place of their paths. Texts without a word, and files
    that are not there or no pictures, are refused: that is known before a model is loaded."""
    if isinstance(given, tuple):
        return tuple(readable(side) for side in given)
    if isinstance(given, Path) and medium(given) is None:
        given = text_of_file(given)
    elif isinstance(given, str) and medium(given) is None:
        refuse_name_of_file(given)
    if isinstance(given, str) and not given.strip():
        raise RefusalError("The text is empty: give at least two tokens of it.")
    return given


def names_medium(text: str) -> bool:
    """Whether a string is the name of a picture or a sound rather than a text."""
    if not text.strip() or len(text) >= _LONGEST_NAME or "\n" in text or "\0" in text:
        return False
    path = Path(text)
    known = path.suffix.lower() in (*PICTURE_SUFFIXES, *SOUND_SUFFIXES, *OTHER_SOUNDS)
    try:
        return known and (path.is_file() or not any(character.isspace() for character in text))
    except OSError:
        return False


def _begins_as_medium(path: Path) -> bool:
    """Whether a file without such a name begins as pictures and sounds do."""
    try:
        with path.open("rb") as stream:
            return stream.read(4).startswith(_BEGINNINGS)
    except OSError:
        return False


def _of_file(path: Path) -> Medium:
    if path.is_dir():
        raise RefusalError(f"'{path}' is a folder: give one picture or sound.")
    try:
        with path.open("rb") as stream:
            data = read_all(stream, str(path), MOST_BYTES)
    except FileNotFoundError:
        raise RefusalError(f"There is no file '{path}': give the name of a picture or sound that is there.") from None
    except OSError as error:
        raise RefusalError(f"'{path}' cannot be read ({error.strerror or error}): check its permissions.") from None
    if data[:4] in (b"RIFF", b"RIFX", b"RF64") and data[8:12] == b"WAVE":
        return _wav(data, path)
    if path.suffix.lower() in (*SOUND_SUFFIXES, *OTHER_SOUNDS):
        made = f"{path.stem}.wav" if path.suffix.lower() not in SOUND_SUFFIXES else f"{path.stem}-converted.wav"
        raise RefusalError(
            f"'{path}' is not a WAV file, the kind of sound that is read here: convert it, for example with ffmpeg -i "
            f"{path.name} {made}."
        )
    return _picture(data, path)


def _picture(data: bytes, path: Path) -> Picture:
    image_module = pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large pictures: the bound below is ours
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
        raise RefusalError(
            f"'{path}' unpacks to more than the {MOST_PIXELS / 1e6:.0f} million pixels that are read: scale it down "
            "first."
        ) from None
    except Exception as error:  # damaged files make decoders stumble in every way that Python knows
        raise RefusalError(
            f"'{path}' is not a picture that can be read ({type(error).__name__}): give a PNG or JPEG file."
        ) from None


def pillow() -> Any:
    """PIL.Image, or how to get it."""
    try:
        from PIL import Image
    except ImportError:
        raise RefusalError("Reading pictures needs Pillow: pip install 'attnscope[images]'.") from None
    return Image


def _in_colour(image: Any) -> Any:
    """RGB, turned as the camera was held; what is transparent becomes white."""
    from PIL import Image, ImageOps

    turned = ImageOps.exif_transpose(image)
    if turned.mode.startswith(("I", "F")):  # 16 bits and more: to eight
        numbers = np.asarray(turned, dtype=np.float64)
        low, high = float(numbers.min()), float(numbers.max())
        turned = Image.fromarray(np.uint8(255 * (numbers - low) / ((high - low) or 1.0)))
    if turned.mode in ("RGBA", "LA", "PA") or "transparency" in turned.info:
        turned = turned.convert("RGBA")
        ground = Image.new("RGBA", turned.size, (255, 255, 255, 255))
        turned = Image.alpha_composite(ground, turned)
    return turned.convert("RGB")


def _of_array(given: np.ndarray) -> Medium:
    if not np.issubdtype(given.dtype, np.number) or not given.size:
        raise RefusalError(f"An array of {given.dtype} with shape {given.shape} is no picture and no sound.")
    if np.issubdtype(given.dtype, np.floating) and not np.isfinite(given).all():
        raise RefusalError("The array holds numbers that are not finite: give a picture or sound without them.")
    if given.ndim == 1:
        return Sound(_as_samples(given), None, "samples in memory")
    if given.ndim == 2 or (given.ndim == 3 and given.shape[2] in (1, 3, 4)):
        image_module = pillow()
        if np.issubdtype(given.dtype, np.floating):
            if given.min() < 0 or given.max() > 1:
                raise RefusalError(
                    "A picture as an array of floating numbers holds 0 to 1: scale it, or give bytes (uint8)."
                )
            given = np.round(255 * given)
        elif given.min() < 0 or given.max() > 255:
            raise RefusalError("A picture as an array of whole numbers holds 0 to 255: scale it.")
        flat = given[..., 0] if given.ndim == 3 and given.shape[2] == 1 else given
        return Picture(_in_colour(image_module.fromarray(flat.astype(np.uint8))), "an array in memory")
    raise RefusalError(
        f"An array with shape {given.shape} is no picture (row, column, 3 colours) and no sound (samples): give one."
    )


def _wav(data: bytes, path: Path) -> Sound:
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of chunks that it does not know
            rate, samples = wavfile.read(io.BytesIO(data))
    except Exception as error:
        raise RefusalError(f"'{path}' is not a whole WAV file ({type(error).__name__}): convert it again.") from None
    if not samples.size or rate <= 0:
        raise RefusalError(f"'{path}' holds no sound: give one that lasts.")
    if np.issubdtype(samples.dtype, np.floating) and not np.isfinite(samples).all():
        raise RefusalError(f"'{path}' holds samples that are not finite: write it again.")
    mono = samples if samples.ndim == 1 else samples.astype(np.float64).mean(1).astype(np.float64)
    return Sound(_as_samples(mono, samples.dtype), int(rate), str(path))


def _as_samples(given: np.ndarray, stored: np.dtype[Any] | None = None) -> Float[np.ndarray, " sample"]:
    """Between -1 and 1, from bytes (128 is silence), whole numbers, or floating ones as they are."""
    kind = given.dtype if stored is None else stored
    if np.issubdtype(kind, np.floating):
        return np.asarray(given, dtype=np.float32)
    if kind == np.uint8:
        return np.asarray((given.astype(np.float64) - 128) / 128, dtype=np.float32)
    return np.asarray(given.astype(np.float64) / (float(np.iinfo(kind).max) + 1), dtype=np.float32)
