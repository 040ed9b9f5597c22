"""A head in a file: safetensors with its tensors, its pattern, and its certificate as metadata. No torch here.

A square head is stored as the theorem of arXiv:2106.03764 writes it: `X` (row, 2 d), `W_Q` and `W_K` (2 d, d); one with
more or fewer keys than queries, or wider than `WIDEST_PROJECTION`, as `queries` and `keys`. The pattern goes along as
`pattern_rows`, `pattern_columns` and `pattern_weights`, so that the certificate can be checked with the file alone:

    from safetensors import safe_open
    with safe_open("head.safetensors", "np") as f:
        X, W_Q, W_K, i, j, a = (f.get_tensor(t) for t in (
            "X", "W_Q", "W_K", "pattern_rows", "pattern_columns", "pattern_weights"))
    logits = (X @ W_Q) @ (X @ W_K).T / np.sqrt(W_Q.shape[1])

numpy knows no bfloat16, so the library's own numpy reader refuses it: open such a file with "pt" and take
`.float().numpy()`, which is exact. Here bfloat16 is read and written as the upper half of a float32.
Metadata are strings: `format`, `version`, `method`, `causal`, `reached`, and `notes` and the `certificate` as JSON.
"""

from __future__ import annotations

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

FORMAT = "attnscope-head"
VERSION = "1"
WIDEST_PROJECTION = 1024  # beyond it the two fixed projections would outweigh the head many times over
PRECISIONS = MappingProxyType({"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"})
_CODES = MappingProxyType({"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int32": "I32"})
_ON_DISK = MappingProxyType({"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "I64": "<i8"})


class Stored(NamedTuple):
    """A tensor and the name of its precision. The values are exact in the array, which may be wider."""

    array: np.ndarray
    dtype: str


@dataclass(frozen=True, eq=False)
class HeadFile:
    """What a file holds. `queries` and `keys` are exact: float64 for float64 heads, float32 for all others.

    `certificate` is what the maker said of the head, as JSON; `pattern` are rows, columns and weights of the entries.
    """

    queries: Float[np.ndarray, "row width"]
    keys: Float[np.ndarray, "key width"]
    dtype: str
    causal: bool
    method: str
    notes: Mapping[str, Any] = field(default_factory=dict)
    certificate: Mapping[str, Any] = field(default_factory=dict)
    pattern: tuple[Int[np.ndarray, " entry"], Int[np.ndarray, " entry"], Float[np.ndarray, " entry"]] | None = None


def write_head(path: Path | str, head: HeadFile) -> Path:
    """Write a head whole or not at all. Equal heads give equal files."""
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
    write_atomically(path, _serialized({**_head_tensors(head), **_pattern_tensors(head)}, metadata))
    return path


def read_head(path: Path | str) -> HeadFile:
    """What is in a file, or a refusal that says what is wrong with it."""
    path = named_path(path)
    if path.is_dir():
        raise RefusalError(f"{path} is a folder: give the head file inside it.")
    tensors, metadata = _deserialized(path)
    _check_format(path, metadata)
    queries, keys = _queries_and_keys(path, tensors)
    try:
        certificate, causal = json.loads(metadata["certificate"]), json.loads(metadata["causal"])
        notes = json.loads(metadata.get("notes", "{}"))
    except (KeyError, ValueError) as error:
        raise RefusalError(f"{path} is damaged inside ({error}): compile the pattern again.") from error
    if not isinstance(certificate, dict) or not isinstance(causal, bool) or not isinstance(notes, dict):
        raise RefusalError(f"{path} is damaged inside (its certificate is no object): compile the pattern again.")
    return HeadFile(
        queries=queries.array,
        keys=keys.array,
        dtype=queries.dtype,
        causal=causal,
        method=metadata.get("method", "unknown"),
        notes=notes,
        certificate=certificate,
        pattern=_pattern(path, tensors),
    )


def _head_tensors(head: HeadFile) -> dict[str, Stored]:
    queries, keys, width = head.queries, head.keys, head.queries.shape[1]
    if len(queries) != len(keys) or width > WIDEST_PROJECTION:
        return {"queries": Stored(queries, head.dtype), "keys": Stored(keys, head.dtype)}
    identity = np.eye(2 * width, dtype=queries.dtype)
    arrays = {"X": np.concatenate([queries, keys], axis=1), "W_Q": identity[:, :width], "W_K": identity[:, width:]}
    return {name: Stored(array, head.dtype) for name, array in arrays.items()}


def _pattern_tensors(head: HeadFile) -> dict[str, Stored]:
    if head.pattern is None:
        return {}
    rows, columns, weights = head.pattern
    return {
        "pattern_rows": Stored(rows, "int32"),
        "pattern_columns": Stored(columns, "int32"),
        "pattern_weights": Stored(weights, "float64"),
    }


def _serialized(tensors: Mapping[str, Stored], metadata: Mapping[str, str]) -> bytes:
    """The safetensors format: length of the header, the header as JSON, the data; wide numbers first, so that all are
    aligned (https://github.com/huggingface/safetensors#format)."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    parts: list[bytes] = []
    place = 0
    data = {name: (_CODES[one.dtype], _bytes(one), one.array.shape) for name, one in tensors.items()}
    for name, (code, content, shape) in sorted(
        data.items(), key=lambda item: (-np.dtype(_ON_DISK[item[1][0]]).itemsize, item[0])
    ):
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [place, place + len(content)]}
        parts.append(content)
        place += len(content)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", errors="replace")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


def _deserialized(path: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    from safetensors import SafetensorError, deserialize

    try:
        content = path.read_bytes()
        found = deserialize(content)  # type: ignore[no-untyped-call]  # compiled code without annotations
    except FileNotFoundError:
        raise RefusalError(f"There is no file {path}: give a head that `attnscope compile` wrote.") from None
    except (SafetensorError, OSError) as error:
        raise RefusalError(f"{path} is not a head, or is cut off ({error}): compile the pattern again.") from error
    (length,) = struct.unpack("<Q", content[:8])
    metadata: dict[str, str] = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
    return {name: _stored(one) for name, one in found if one["dtype"] in _ON_DISK}, metadata


def _bytes(one: Stored) -> bytes:
    if one.dtype == "bfloat16":
        bits = np.ascontiguousarray(one.array, dtype="<f4").view("<u4")
        return (bits >> 16).astype("<u2").tobytes()
    return np.ascontiguousarray(one.array, dtype=_ON_DISK[_CODES[one.dtype]]).tobytes()


def _stored(one: Mapping[str, Any]) -> Stored:
    code = one["dtype"]
    raw = np.frombuffer(one["data"], dtype=_ON_DISK[code]).reshape(one["shape"])
    if code == "BF16":
        return Stored((raw.astype("<u4") << 16).view("<f4").astype(np.float32), "bfloat16")
    if code not in PRECISIONS:
        return Stored(raw.astype(np.int64), "int64")
    return Stored(raw.astype(np.float64 if code == "F64" else np.float32), PRECISIONS[code])


def _check_format(path: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise RefusalError(f"{path} holds tensors, but no head: give a file that `attnscope compile` wrote.")
    if metadata.get("version") != VERSION:
        raise RefusalError(
            f"{path} is a head of version {metadata.get('version')} and this attnscope reads version {VERSION}: "
            "compile the pattern again, or use the attnscope that wrote it."
        )


def _queries_and_keys(path: Path, tensors: Mapping[str, Stored]) -> tuple[Stored, Stored]:
    wanted = ("X", "W_Q", "W_K") if "X" in tensors else ("queries", "keys")
    missing = [name for name in wanted if name not in tensors]
    if missing:
        raise RefusalError(f"{path} holds no tensor {' and no '.join(missing)}: compile the pattern again.")
    found = [tensors[name] for name in wanted]
    shapes, dtype = [one.array.shape for one in found], found[0].dtype
    fits = (
        all(len(shape) == 2 and min(shape) > 0 for shape in shapes)
        and all(one.dtype == dtype for one in found)
        and dtype in PRECISIONS.values()
        and shapes[-1][1] == shapes[-2][1]
        and (len(found) == 2 or shapes[0][1] == shapes[1][0] == shapes[2][0])
    )
    if not fits:
        raise RefusalError(f"{path} is damaged inside (shapes {shapes} do not fit): compile the pattern again.")
    if len(found) == 2:
        return found[0], found[1]
    inputs, to_queries, to_keys = (one.array for one in found)
    width = to_queries.shape[1]
    if np.array_equal(np.concatenate([to_queries, to_keys], axis=1), np.eye(2 * width)):
        queries, keys = inputs[:, :width], inputs[:, width:]  # a product would make NaN of infinities
    else:
        queries, keys = (_rounded(inputs @ projection, dtype) for projection in (to_queries, to_keys))
    return Stored(np.ascontiguousarray(queries), dtype), Stored(np.ascontiguousarray(keys), dtype)


def _rounded(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """To the nearest number of a precision, ties to even, as a float32 (float64 stays what it is)."""
    if dtype == "float16":
        return numbers.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = numbers.astype(np.float32).view(np.uint32)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isfinite(numbers), nearest.view(np.float32), numbers)
    return numbers


def _pattern(
    path: Path, tensors: Mapping[str, Stored]
) -> tuple[Int[np.ndarray, " entry"], Int[np.ndarray, " entry"], Float[np.ndarray, " entry"]] | None:
    names = ("pattern_rows", "pattern_columns", "pattern_weights")
    if not any(name in tensors for name in names):
        return None
    wrong = ""
    for name, kind in zip(names, "iif", strict=True):
        array = tensors[name].array if name in tensors else None
        if array is None:
            wrong = wrong or f"{name}: missing"
        elif array.ndim != 1 or array.dtype.kind != kind:
            wrong = wrong or f"{name}: a list of {'whole ' * (kind == 'i')}numbers is needed"
    sizes = {name: tensors[name].array.size for name in names if name in tensors}
    if not wrong and len(set(sizes.values())) > 1:
        wrong = f"pattern_columns: {sizes['pattern_rows']} rows, {sizes['pattern_columns']} columns, "
        wrong += f"{sizes['pattern_weights']} weights"
    if wrong:
        raise RefusalError(f"{path} is damaged inside ({wrong}): compile the pattern again.")
    rows, columns, weights = (tensors[name].array for name in names)
    return rows, columns, weights
