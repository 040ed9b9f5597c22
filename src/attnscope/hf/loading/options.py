"""How a model is loaded and how a corpus is cut for it: options as values, handed down whole.

Commands and Python functions spell these out as arguments of their own and build the values once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscope.core.errors import RefusalError, meant, nearest
from attnscope.core.files import named_path, read_document

# Where every part of a model shall lie, as a person says it: `auto`, a JSON file, or a mapping.
#
#     {"": "cpu", "model.layers.20": "disk", "model.layers.21": "disk"}       the rest of the model, and two blocks
#
# A name stands for all that is below it, and the longest that fits counts. Nothing here needs torch, so that a file is
# read and refused before anything is loaded.

AUTO = "auto"
DISK = "disk"
DeviceMap = str | Path | Mapping[str, str | int]

_WANTED = 'a JSON file like {"": "cpu", "model.layers.20": "disk"}, or auto'


def read_device_map(given: DeviceMap) -> Mapping[str, str | int] | None:
    """What is asked for, by name; None for `auto`."""
    if isinstance(given, str) and given == AUTO:
        return None
    where = "The device map" if isinstance(given, Mapping) else f"The device map {given}"
    read: Any = given if isinstance(given, Mapping) else read_document(named_path(given, "device map"), _WANTED)
    if not isinstance(read, Mapping) or not all(isinstance(name, str) for name in read):
        raise RefusalError(f"{where} is no mapping from parts of a model to devices: give {_WANTED}.")
    for name, device in read.items():
        if isinstance(device, bool) or not isinstance(device, str | int):
            raise RefusalError(
                f"{where} puts '{name}' on {device!r:.40}, which is no device: write cpu, disk, cuda:0 or a number."
            )
    if not read:
        raise RefusalError(f"{where} is empty and names no layer: give {_WANTED}.")
    return read


def spread(asked: Mapping[str, str | int], tree: Mapping[str, Iterable[str]], name: str) -> dict[str, str | int]:
    """The same, said of parts that do not overlap, as accelerate wants it.

    `tree` has what is right below every module: modules, and parameters of its own.
    """
    below = {part for parts in tree.values() for part in parts}
    for part in asked:
        if part and part not in below:
            raise RefusalError(
                f"The device map names '{part}', and {name} has no such part: name its modules as its weights do."
                f"{nearest(part, (path for path in tree if path))}"
            )
    out: dict[str, str | int] = {}
    _spread("", None, asked, tree, out)
    if left := [part for part in out if out[part] == ""]:
        raise RefusalError(
            f"The device map says nothing of '{left[0]}' of {name}: name it, or all the rest with "
            '"" (such as "": "cpu").'
        )
    return out


def _spread(
    path: str,
    above: str | int | None,
    asked: Mapping[str, str | int],
    tree: Mapping[str, Iterable[str]],
    out: dict[str, str | int],
) -> None:
    mine = asked.get(path, above)
    inside = f"{path}." if path else ""
    if any(part.startswith(inside) for part in asked if part != path):
        for part in tree.get(path, ()):
            _spread(part, mine, asked, tree, out)
    else:
        out[path] = "" if mine is None else mine


BOS = ("auto", "yes", "no")
DTYPES = ("float32", "float64", "bfloat16", "float16", "auto")


@dataclass(frozen=True)
class Loading:
    """How a model that is named becomes one in memory, and what its files may do on the way; see `load`."""

    dtype: str = "float32"
    device: str = "cpu"
    random_init: bool = False
    seed: int = 0  # of random weights
    allow_pickle: bool = False
    trust_remote_code: bool = False
    revision: str | None = None
    device_map: DeviceMap | None = None  # parts of a model on several devices, in memory and on disk
    stream_weights: bool = False  # every block on disk, read when its turn comes


@dataclass(frozen=True)
class Sampling:
    """Which sequences of a corpus are read, and how many at a time."""

    samples: int | None = None  # at most; None: all of a corpus
    max_tokens: int | None = None  # of one sequence; None: 256, or what the model takes
    batch_size: int = 8
    seed: int = 0  # of the choice of sequences, and of random tokens
    field: str = "text"  # of .jsonl and .parquet files
    bos: str = "auto"  # whether sequences begin with BOS: as the model wants it, yes, or no
    short: bool = False  # whether a corpus shorter than one sequence is read as it is, and not refused


def refuse_unknown_dtype(name: str) -> None:
    if name not in DTYPES:
        near = meant(str(name), DTYPES)  # torch.float64 is no name, and is near one
        raise RefusalError(f"There is no dtype '{name}': choose one of {', '.join(DTYPES)}.{near}")


def refuse_unknown_bos(asked: str) -> None:
    if asked not in BOS:
        raise RefusalError(f"BOS cannot be '{asked}': choose one of {', '.join(BOS)}.{meant(asked, BOS)}")
