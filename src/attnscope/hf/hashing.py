"""Which weights exactly: a hash that two surveys of the same model share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def hash_of_files(files: Iterable[Path]) -> str:
    """SHA-256 of one file, as `sha256sum` prints it; of several, that of their names and hashes in order."""
    hashes = [(file.name, _hash_of_file(file)) for file in sorted(files)]
    if len(hashes) == 1:
        return hashes[0][1]
    return hash_of_json(hashes)


def hash_of_json(data: Mapping[str, Any] | list[Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()


def _hash_of_file(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
