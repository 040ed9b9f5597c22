"""A head in a file: safetensors with its tensors, its pattern, and its certificate as metadata. This module needs no
torch.

A square head is stored as the theorem of arXiv:2106.03764 writes it: `X` (row, 2 d), `W_Q` and `W_K` (2 d, d). A head
with more or fewer keys than queries, or wider than `WIDEST_PROJECTION`, is stored as `queries` and `keys`. The pattern
is stored as `pattern_rows`, `pattern_columns`, `pattern_weights`, so the file alone is enough to check the certificate:

    from safetensors import safe_open
    with safe_open("head.safetensors", "np") as f:
        X, W_Q, W_K, i, j, a = (f.get_tensor(t) for t in (
            "X", "W_Q", "W_K", "pattern_rows", "pattern_columns", "pattern_weights"))
    logits = (X @ W_Q) @ (X @ W_K).T / np.sqrt(W_Q.shape[1])

numpy has no bfloat16, so the library's own numpy reader refuses it: open such a file with "pt" and take
`.float().numpy()`, which is exact. Here bfloat16 is read and written as the upper half of a float32.
Metadata are strings: `format`, `version`, `method`, `causal`, `reached`, `notes` and the `certificate` as JSON, and
`sha256`, a hash of all tensors and metadata. A file that does not match its hash is refused; one without is read.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from attnscope.core.decoding import plain
from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path, write_atomically
from attnscope.core.hashes import HASH

FORMAT = "attnscope-head"
VERSION = "1"
WIDEST_PROJECTION = 1024  # above this, the two fixed projections would be many times larger than the head
PRECISIONS = MappingProxyType({"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"})
_CODES = MappingProxyType({"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int32": "I32"})
_ON_DISK = MappingProxyType({"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "I64": "<i8"})
_PATTERN = ("pattern_rows", "pattern_columns", "pattern_weights")
PatternArrays = tuple[Int[np.ndarray, " entry"], Int[np.ndarray, " entry"], Float[np.ndarray, " entry"]]


class Stored(NamedTuple):
    """A tensor and the name of its precision. The array holds the exact values and may be wider."""

    array: np.ndarray
    dtype: str


@dataclass(frozen=True, eq=False)
class HeadFile:
    """The content of a head file. `queries` and `keys` are exact: float64 for float64 heads, float32 for all others.

    `certificate` is the maker's certificate as JSON; `pattern` holds the rows, columns and weights of the entries.
    """

    queries: Float[np.ndarray, "row width"]
    keys: Float[np.ndarray, "key width"]
    dtype: str
    causal: bool
    method: str
    notes: Mapping[str, Any] = field(default_factory=dict)
    certificate: Mapping[str, Any] = field(default_factory=dict)
    pattern: PatternArrays | None = None


def write_head(path: Path | str, head: HeadFile) -> Path:
    """Write a head atomically. Equal heads give equal files."""
    path = named_path(path)
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "method": head.method,
        "causal": json.dumps(head.causal),
        "reached": json.dumps(bool(head.certificate.get("reached", False))),
        "notes": json.dumps(plain(head.notes), allow_nan=False),
        "certificate": json.dumps(plain(head.certificate), allow_nan=False),
    }
    queries, keys, width = head.queries, head.keys, head.queries.shape[1]
    if len(queries) != len(keys) or width > WIDEST_PROJECTION:
        arrays = {"queries": queries, "keys": keys}
    else:
        identity = np.eye(2 * width, dtype=queries.dtype)
        arrays = {"X": np.concatenate([queries, keys], axis=1), "W_Q": identity[:, :width], "W_K": identity[:, width:]}
    tensors = {name: Stored(array, head.dtype) for name, array in arrays.items()}
    for name, array, dtype in zip(_PATTERN, head.pattern or (), ("int32", "int32", "float64"), strict=False):
        tensors[name] = Stored(array, dtype)
    write_atomically(path, _serialized(tensors, metadata))
    return path


def read_head(path: Path | str) -> HeadFile:
    """Read a head file; refuse a damaged or foreign file and say why."""
    path = named_path(path)
    if path.is_dir():
        raise RefusalError(f"{path} is a folder: give the head file inside it.")
    tensors, metadata = _deserialized(path)
    if metadata.get("format") != FORMAT:
        raise RefusalError(f"{path} holds tensors, but no head: give a file that `attnscope compile` wrote.")
    if metadata.get("version") != VERSION:
        raise RefusalError(
            f"{path} is a head of version {metadata.get('version')!s:.40} and this attnscope reads version {VERSION}: "
            "compile the pattern again, or use the attnscope that wrote it."
        )
    queries, keys = _queries_and_keys(path, tensors)
    try:
        certificate, causal = json.loads(metadata["certificate"]), json.loads(metadata["causal"])
        notes = json.loads(metadata.get("notes", "{}"))
    except (KeyError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(certificate, dict) or not isinstance(causal, bool) or not isinstance(notes, dict):
        raise _damaged(path, "its certificate is not an object")
    method, pattern = metadata.get("method", "unknown"), _pattern(path, tensors)
    return HeadFile(queries.array, keys.array, queries.dtype, causal, method, notes, certificate, pattern)


def _damaged(path: Path, reason: str) -> RefusalError:
    return RefusalError(f"{path} is damaged ({reason:.200}): compile the pattern again.")


def _serialized(tensors: Mapping[str, Stored], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes in safetensors format: length of the header, the header as JSON, the data. Wide numbers come
    first, so that all are aligned (https://github.com/huggingface/safetensors#format).
    """
    parts: list[bytes] = []
    start = 0
    codes = {name: _CODES[tensor.dtype] for name, tensor in tensors.items()}
    contents = {name: _bytes(tensor) for name, tensor in tensors.items()}
    shapes = {name: list(tensor.array.shape) for name, tensor in tensors.items()}
    hashed = content_hash({name: (codes[name], shapes[name], contents[name]) for name in tensors}, metadata)
    header: dict[str, Any] = {"__metadata__": {**metadata, HASH: hashed}}
    for name in sorted(tensors, key=lambda name: (-np.dtype(_ON_DISK[codes[name]]).itemsize, name)):
        content, shape = contents[name], shapes[name]
        header[name] = {"dtype": codes[name], "shape": shape, "data_offsets": [start, start + len(content)]}
        parts.append(content)
        start += len(content)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", errors="replace")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


def content_hash(tensors: Mapping[str, tuple[str, list[int], bytes]], metadata: Mapping[str, str]) -> str:
    """Hash the tensors (type, shape and bytes, by name) and the metadata without its own hash, in any order."""
    digest = hashlib.sha256()
    for name, (dtype, shape, content) in sorted(tensors.items()):
        digest.update(json.dumps([name, dtype, shape]).encode())
        digest.update(content)
    digest.update(json.dumps({name: metadata[name] for name in sorted(metadata) if name != HASH}).encode())
    return digest.hexdigest()


def _deserialized(path: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    from safetensors import SafetensorError, deserialize

    try:
        content = path.read_bytes()
        tensors = deserialize(content)  # type: ignore[no-untyped-call]  # compiled code without annotations
    except FileNotFoundError:
        raise RefusalError(f"There is no file {path}: give a head that `attnscope compile` wrote.") from None
    except (SafetensorError, OSError) as error:
        raise RefusalError(f"{path} is not a head, or is cut off ({error!s:.200}): compile it again.") from error
    (length,) = struct.unpack("<Q", content[:8])
    metadata: dict[str, str] = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
    stored = {name: (tensor["dtype"], list(tensor["shape"]), bytes(tensor["data"])) for name, tensor in tensors}
    if HASH in metadata and metadata[HASH] != content_hash(stored, metadata):
        raise _damaged(path, f"it does not fit its {HASH}")
    return {name: _stored(tensor) for name, tensor in tensors if tensor["dtype"] in _ON_DISK}, metadata


def _bytes(tensor: Stored) -> bytes:
    if tensor.dtype == "bfloat16":
        bits = np.ascontiguousarray(tensor.array, dtype="<f4").view("<u4")
        return (bits >> 16).astype("<u2").tobytes()
    return np.ascontiguousarray(tensor.array, dtype=_ON_DISK[_CODES[tensor.dtype]]).tobytes()


def _stored(tensor: Mapping[str, Any]) -> Stored:
    code = tensor["dtype"]
    raw = np.frombuffer(tensor["data"], dtype=_ON_DISK[code]).reshape(tensor["shape"])
    if code == "BF16":
        return Stored((raw.astype("<u4") << 16).view("<f4").astype(np.float32), "bfloat16")
    if code not in PRECISIONS:
        return Stored(raw.astype(np.int64), "int64")
    return Stored(raw.astype(np.float64 if code == "F64" else np.float32), PRECISIONS[code])


def _queries_and_keys(path: Path, tensors: Mapping[str, Stored]) -> tuple[Stored, Stored]:
    names = ("X", "W_Q", "W_K") if "X" in tensors else ("queries", "keys")
    missing = [name for name in names if name not in tensors]
    if missing:
        raise RefusalError(f"{path} holds no tensor {' and no '.join(missing)}: compile the pattern again.")
    stored = [tensors[name] for name in names]
    shapes, dtype = [tensor.array.shape for tensor in stored], stored[0].dtype
    fits = (
        all(len(shape) == 2 and min(shape) > 0 for shape in shapes)
        and all(tensor.dtype == dtype for tensor in stored)
        and dtype in PRECISIONS.values()
        and shapes[-1][1] == shapes[-2][1]
        and (len(stored) == 2 or shapes[0][1] == shapes[1][0] == shapes[2][0])
    )
    if not fits:
        raise _damaged(path, f"shapes {shapes} do not fit")
    if len(stored) == 2:
        return stored[0], stored[1]
    inputs, to_queries, to_keys = (tensor.array for tensor in stored)
    width = to_queries.shape[1]
    if np.array_equal(np.concatenate([to_queries, to_keys], axis=1), np.eye(2 * width)):
        queries, keys = inputs[:, :width], inputs[:, width:]  # a product would turn infinities into NaN
    else:
        queries, keys = (_rounded(inputs @ projection, dtype) for projection in (to_queries, to_keys))
    return Stored(np.ascontiguousarray(queries), dtype), Stored(np.ascontiguousarray(keys), dtype)


def _rounded(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """Round to the nearest number of a precision, ties to even, as float32 (float64 is unchanged)."""
    if dtype == "float16":
        return numbers.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = numbers.astype(np.float32).view(np.uint32)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isfinite(numbers), nearest.view(np.float32), numbers)
    return numbers


def _pattern(path: Path, tensors: Mapping[str, Stored]) -> PatternArrays | None:
    arrays = {name: tensors[name].array for name in _PATTERN if name in tensors}
    if not arrays:
        return None
    for name, kind in zip(_PATTERN, "iif", strict=True):
        if name not in arrays:
            raise _damaged(path, f"{name}: missing")
        if arrays[name].ndim != 1 or arrays[name].dtype.kind != kind:
            raise _damaged(path, f"{name}: a list of {'whole ' * (kind == 'i')}numbers is needed")
    rows, columns, weights = (arrays[name] for name in _PATTERN)
    if not rows.size == columns.size == weights.size:
        raise _damaged(path, f"pattern_columns: {rows.size} rows, {columns.size} columns, {weights.size} weights")
    return rows, columns, weights
