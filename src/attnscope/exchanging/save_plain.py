"""save_plain(model, folder): a model whose weights alone were changed (pruned heads) is an ordinary model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.exchanging.new_folder import new_folder
from attnscope.hf.loading.quiet import quiet


def save_plain(model: nn.Module, folder: str | Path, tokenizer: Any | None = None) -> Path:
    """Write it into a folder that is new or empty, whole or not at all; it loads everywhere."""
    saving = getattr(model, "save_pretrained", None)
    if not callable(saving):
        raise RefusalError(f"{type(model).__name__} is no transformers model: save its state_dict instead.")
    with new_folder(Path(folder)) as draft, quiet():
        saving(draft)
        if callable(getattr(tokenizer, "save_pretrained", None)):
            tokenizer.save_pretrained(draft)  # type: ignore[union-attr]
    return Path(folder)
