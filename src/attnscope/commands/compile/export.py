"""Save and load heads as torch tensors. `heads.head_file` defines the format and needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnscope.commands.compile.record import Compiled
from attnscope.heads.head import Head
from attnscope.heads.head_file import HeadFile, read_head, write_head
from attnscope.heads.pattern import Pattern


def save_head(
    path: Path | str, head: Head, certificate_json: Mapping[str, Any], pattern: Pattern | None = None
) -> Path:
    """Write a head and its certificate (or the certificate of a compilation) atomically."""
    queries, keys = head.arrays()
    entries = None if pattern is None else (pattern.rows, pattern.columns, pattern.weights)
    return write_head(
        path, HeadFile(queries, keys, head.dtype, head.causal, head.method, head.notes, certificate_json, entries)
    )


def load_head(path: Path | str) -> tuple[Head, dict[str, Any]]:
    """Return the head of a file and its certificate."""
    stored = read_head(path)
    head = Head.of(stored.queries, stored.keys, stored.dtype, stored.causal, stored.method, stored.notes)
    return head, dict(stored.certificate)


def head_of(compiled: Compiled) -> Head:
    """Return the head of a record in its own precision."""
    certificate = compiled.certificate
    return Head.of(
        compiled.queries, compiled.keys, certificate.dtype, certificate.causal, compiled.method, compiled.notes
    )
