"""A head in a file: safetensors with its tensors, its pattern, and its certificate as metadata.

A square head is stored as the theorem of arXiv:2106.03764 writes it: `X` (row, 2 d), `W_Q` and `W_K` (2 d, d); one with
more or fewer keys than queries, or wider than `WIDEST_PROJECTION`, as `queries` and `keys`. The pattern goes along as
`pattern_rows`, `pattern_columns` and `pattern_weights`, so that the certificate can be checked with the file alone:

    from safetensors import safe_open
    with safe_open("head.safetensors", "np") as f:
        X, W_Q, W_K, i, j, a = (f.get_tensor(t) for t in (
            "X", "W_Q", "W_K", "pattern_rows", "pattern_columns", "pattern_weights"))
    logits = (X @ W_Q) @ (X @ W_K).T / np.sqrt(W_Q.shape[1])

numpy knows no bfloat16: open such a file with "pt" and take `.float().numpy()`, which is exact.
Metadata are strings: `format`, `version`, `method`, `causal`, `reached` and the `certificate` as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from attnscope.core.errors import RefusalError
from attnscope.core.files import write_atomically
from attnscope.core.plain import plain
from attnscope.heads.head import Head
from attnscope.patterns.pattern import Pattern

FORMAT = "attnscope-head"
VERSION = "1"
SUFFIX = ".safetensors"
WIDEST_PROJECTION = 1024  # beyond it the two fixed projections would outweigh the head many times over


def save_head(
    path: Path | str, head: Head, certificate_json: Mapping[str, Any], pattern: Pattern | None = None
) -> Path:
    """Write a head whole or not at all; `certificate_json` is what its certificate (or a compilation) says of it."""
    from safetensors.torch import save

    path = Path(path)
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "method": head.method,
        "causal": json.dumps(head.causal),
        "reached": json.dumps(bool(certificate_json.get("reached", False))),
        "notes": json.dumps(plain(head.notes), allow_nan=False),
        "certificate": json.dumps(plain(certificate_json), allow_nan=False),
    }
    tensors = {name: tensor.contiguous() for name, tensor in {**_tensors(head), **_entries(pattern)}.items()}
    write_atomically(path, save(tensors, metadata))
    return path


def load_head(path: Path | str) -> tuple[Head, dict[str, Any]]:
    """The head of a file and its certificate, or a refusal that says what is wrong with the file."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if path.is_dir():
        raise RefusalError(f"{path} is a folder: give the head file inside it.")
    try:
        with safe_open(path, "pt") as stored:
            metadata = stored.metadata() or {}
            names = set(stored.keys())
            _check_format(path, metadata)
            wanted = ("X", "W_Q", "W_K") if "X" in names else ("queries", "keys")
            missing = [name for name in wanted if name not in names]
            if missing:
                raise RefusalError(f"{path} holds no tensor {' and no '.join(missing)}: compile the pattern again.")
            tensors = [stored.get_tensor(name) for name in wanted]
    except FileNotFoundError:
        raise RefusalError(f"There is no file {path}: give a head that `attnscope compile` wrote.") from None
    except (SafetensorError, OSError) as error:
        raise RefusalError(f"{path} is not a head, or is cut off ({error}): compile the pattern again.") from error
    queries, keys = _queries_and_keys(path, tensors)
    try:
        certificate, causal = json.loads(metadata["certificate"]), json.loads(metadata["causal"])
        notes = json.loads(metadata.get("notes", "{}"))
    except (KeyError, ValueError) as error:
        raise RefusalError(f"{path} is damaged inside ({error}): compile the pattern again.") from error
    if not isinstance(certificate, dict) or not isinstance(causal, bool) or not isinstance(notes, dict):
        raise RefusalError(f"{path} is damaged inside (its certificate is none): compile the pattern again.")
    return Head(queries, keys, causal, metadata.get("method", "unknown"), notes), certificate


def _tensors(head: Head) -> dict[str, torch.Tensor]:
    if len(head.queries) != len(head.keys) or head.width > WIDEST_PROJECTION:
        return {"queries": head.queries, "keys": head.keys}
    return dict(zip(("X", "W_Q", "W_K"), head.inputs(), strict=True))


def _entries(pattern: Pattern | None) -> dict[str, torch.Tensor]:
    if pattern is None:
        return {}
    return {
        "pattern_rows": torch.from_numpy(pattern.rows).to(torch.int32),
        "pattern_columns": torch.from_numpy(pattern.columns).to(torch.int32),
        "pattern_weights": torch.from_numpy(pattern.weights),
    }


def _check_format(path: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise RefusalError(f"{path} holds tensors, but no head: give a file that `attnscope compile` wrote.")
    if metadata.get("version") != VERSION:
        raise RefusalError(
            f"{path} is a head of version {metadata.get('version')} and this attnscope reads version {VERSION}: "
            "compile the pattern again, or use the attnscope that wrote it."
        )


def _queries_and_keys(path: Path, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The projections hold ones and zeros, so the products are exact in every precision (where X is finite)."""
    shapes = [tuple(tensor.shape) for tensor in tensors]
    fits = (
        all(tensor.ndim == 2 and tensor.is_floating_point() for tensor in tensors)
        and len({tensor.dtype for tensor in tensors}) == 1
        and shapes[-1][1] == shapes[-2][1]
        and (len(tensors) == 2 or shapes[0][1] == shapes[1][0] == shapes[2][0])
    )
    if not fits:
        raise RefusalError(f"{path} is damaged inside (shapes {shapes} do not fit): compile the pattern again.")
    if len(tensors) == 2:
        return tensors[0], tensors[1]
    inputs, to_queries, to_keys = tensors
    width = to_queries.shape[1]
    identity = torch.eye(2 * width, dtype=inputs.dtype)
    if torch.equal(torch.cat([to_queries, to_keys], dim=1), identity):
        return inputs[:, :width].contiguous(), inputs[:, width:].contiguous()
    return inputs @ to_queries, inputs @ to_keys
