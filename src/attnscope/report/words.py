"""Whether what was read begins with BOS, in a few words that all records share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def beginning_words(provenance: Mapping[str, Any]) -> tuple[str, ...]:
    """`BOS first (the tokenizer adds it)`, `no BOS (the tokenizer has none)`; nothing where it is not known."""
    found = provenance.get("bos")
    if not isinstance(found, Mapping) or "begins" not in found:
        return ()
    if not isinstance(found["begins"], bool):  # surveys of both kinds, merged
        return ("with and without BOS",)
    why = found.get("why")
    reason = "; ".join(map(str, why)) if isinstance(why, list) else why
    said = "BOS first" if found["begins"] else "no BOS"
    return (f"{said} ({reason})" if reason else said,)
