"""Loaded: a model in memory, with everything that is known about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from attnscope.core.stamp import Stamp
from attnscope.hf.loading.classes import Kind
from attnscope.hf.loading.model_files import Header


@dataclass(frozen=True)
class Loaded:
    """A model ready to be measured: in evaluation mode, without gradients."""

    model: nn.Module
    tokenizer: Any | None
    name: str
    class_name: str
    sha256: str
    parameters: int
    kind: Kind
    positions: int | None
    vocab_size: int | None
    pad: int | None
    bos: int | None
    decoder_start: int | None
    accepts: frozenset[str]
    reads_text: bool = True
    header: Header = field(default_factory=Header)  # what a GGUF file says about BOS
    provenance: dict[str, Any] = field(default_factory=dict)

    def stamped(self, **notes: Any) -> dict[str, Any]:
        """Return the provenance of a record about this model: the model, `notes`, versions and the time."""
        model = {**self.provenance, "name": self.name, "hash": self.sha256}
        return {"model": model, **notes, **Stamp.now().to_json()}
