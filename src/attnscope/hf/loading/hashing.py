"""Which model exactly: a hash of its weights, equal for two surveys of the same model. Needs no torch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# Set or changed by saving and loading; the precision of a scan is said beside the model, not in it.
_BOOKKEEPING = frozenset({"name", "architectures", "dtype", "torch_dtype", "auto_map"})


def hash_of_files(files: Iterable[Path]) -> str:
    """SHA-256 of one file, as `sha256sum` prints it; of several, that of their names and hashes in order."""
    hashes = [(file.name, _hash_of_file(file)) for file in sorted(files)]
    if len(hashes) == 1:
        return hashes[0][1]
    return hash_of_json(hashes)


def hash_of_json(data: Mapping[str, Any] | list[Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()


def described(config: Any) -> dict[str, Any]:
    """What a configuration says about computation; empty where there is none that can be read."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type) and not hasattr(config, "to_dict"):
        return _computing(dataclasses.asdict(config))
    return _computing(config.to_dict()) if callable(getattr(config, "to_dict", None)) else {}


def _computing(settings: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        str(name): _computing(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if not (str(name).startswith("_") or name in _BOOKKEEPING or "version" in str(name) or "path" in str(name))
    }


def _hash_of_file(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
