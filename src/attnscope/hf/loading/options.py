"""How a model is loaded and how a corpus is cut for it: options as values, handed down whole.

Commands and Python functions spell these out as arguments of their own and build the values once.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.core.errors import RefusalError, meant
from attnscope.hf.loading.device_map import DeviceMap

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
