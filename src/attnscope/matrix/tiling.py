"""Cut a pattern into tiles that fit in cache: strips of rows, and ranges of keys that those rows may see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.matrix.scores import Scores

# Smaller tiles cost calls, larger ones exceed a second-level cache of 2 MB. Of tiles of 0.13-4 MB with 64-256 rows
# and 256-4096 keys, this choice was within the noise (about 15%) of the best at 128, 512, 4096 and 16384 keys. An
# accelerator needs few large tiles instead.
TILE_BYTES = 1024 * 1024
ACCELERATOR_TILE_BYTES = 256 * 1024**2
TILE_KEYS = 1024
PRODUCT_ROWS = 128


class Tile(NamedTuple):
    """A rectangle of the patterns of several heads and sequences."""

    batch: slice
    head: slice
    row: slice
    key: slice


@dataclass(frozen=True)
class Strip:
    """Rows of several heads and sequences, and the key ranges that hold all keys they may see."""

    batch: slice
    head: slice
    row: slice
    keys: tuple[slice, ...]


def width(piece: slice) -> int:
    return int(piece.stop - piece.start)


def pieces(start: int, stop: int, size: int) -> Iterator[slice]:
    for begin in range(start, stop, size):
        yield slice(begin, min(begin + size, stop))


def tile_elements(dtype: torch.dtype, device: torch.device) -> int:
    """Return how many numbers a tile may hold."""
    return (TILE_BYTES if device.type == "cpu" else ACCELERATOR_TILE_BYTES) // dtype.itemsize


def cut(tensor: Tensor, *pieces: slice) -> Tensor:
    """Return the part of a tensor under a tile, leading axes first; axes of size 1 stay whole, to be broadcast.

    Whole axes are not sliced: for short sequences plain slicing would cost as much as the sums.
    """
    shape = tensor.shape
    for axis, piece in enumerate(pieces):
        size, length = shape[axis], piece.stop - piece.start
        if size not in (1, length):
            tensor = tensor.narrow(axis, piece.start, length)
    return tensor


class TileShape(NamedTuple):
    """How many sequences, heads, rows and keys a tile has room for."""

    batch: int
    heads: int
    rows: int
    keys: int


def tile_shape(scores: Scores, dtype: torch.dtype) -> TileShape:
    """Return a shape of about 128 rows per product, at most 1024 keys, and as many heads as fit."""
    _, heads, rows, _ = scores.query.shape
    keys, sharing = scores.key.shape[2], scores.sharing
    room = tile_elements(dtype, scores.query.device)
    tile_keys = max(1, min(keys, TILE_KEYS))
    tile_rows = max(1, min(rows, max(16, PRODUCT_ROWS // sharing)))
    tile_heads = min(heads, sharing * max(1, room // (sharing * tile_rows * tile_keys)))
    # Several sequences share one tile only if it holds them whole.
    short = (tile_heads, tile_rows, tile_keys) == (heads, rows, keys)
    return TileShape(max(1, room // (heads * rows * keys)) if short else 1, tile_heads, tile_rows, tile_keys)


def strips(scores: Scores, dtype: torch.dtype) -> Iterator[Strip]:
    """Cut the pattern into strips of rows, and each strip's visible keys into tiles."""
    batch, heads, rows, _ = scores.query.shape
    tile_batch, tile_heads, tile_rows, tile_keys = tile_shape(scores, dtype)
    keys, band = scores.key.shape[2], scores.band
    for sequences in pieces(0, batch, tile_batch):
        for head in pieces(0, heads, tile_heads):
            for row in pieces(0, rows, tile_rows):
                start, stop = band.visible(row.start, row.stop - 1, keys)
                yield Strip(sequences, head, row, tuple(pieces(start, stop, tile_keys)))
