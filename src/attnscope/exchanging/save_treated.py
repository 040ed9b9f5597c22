"""save_treated(model, folder): a model with another attention in it, as a folder that every command takes for MODEL.

What is written, and why transformers alone refuses it, is said in `hf.loading.treated`. A change of weights alone
(qk_clip) needs none of that: the folder is an ordinary one, which loads everywhere, with a sidecar that says what was
done.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.core.files import write_atomically
from attnscope.exchanging.new_folder import new_folder
from attnscope.hf.exchanging.part import recipe_of
from attnscope.hf.exchanging.recipe import PREFIX
from attnscope.hf.loading.hashing import hash_of_files
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.loading.treated import SIDECAR, WEIGHTS, Sidecar, as_text, refusing_config

ORDINARY = "model.safetensors"


def save_treated(model: nn.Module | Loaded, folder: str | Path, tokenizer: Any | None = None) -> Path:
    """Write the treated model into a folder that is new or empty: all of it, or nothing."""
    if isinstance(model, Loaded):
        model, tokenizer = model.model, model.tokenizer if tokenizer is None else tokenizer
    recipe, place = recipe_of(model), Path(folder)
    if recipe is None:
        raise RefusalError(
            f"{type(model).__name__} has no variant installed: call save_treated inside "
            "`with attnscope.installed(...)`, or save_pretrained for a plain model."
        )
    if not callable(getattr(model, "save_pretrained", None)):
        raise RefusalError(f"{type(model).__name__} is no transformers model: save its state_dict instead.")
    with new_folder(place) as draft, quiet():
        _write(model, draft, tokenizer)
    return place


def _write(model: Any, folder: Path, tokenizer: Any | None) -> None:
    recipe = recipe_of(model)
    assert recipe is not None
    whole = model.state_dict()
    added = {name: tensor for name, tensor in whole.items() if f".{PREFIX}" in name}
    # transformers may save a model's weights under older names than it has in memory: ours are put beside them.
    plain = {name: tensor for name, tensor in whole.items() if name not in added}
    model.save_pretrained(folder, state_dict=plain, max_shard_size="1000TB")
    if tokenizer is not None and callable(getattr(tokenizer, "save_pretrained", None)):
        tokenizer.save_pretrained(folder)
    weights_alone = recipe.variant == "qk_clip"
    name = ORDINARY if weights_alone else WEIGHTS
    if not weights_alone:
        stored = load_file(folder / ORDINARY)
        stored |= {key: tensor.detach().cpu().contiguous() for key, tensor in added.items()}
        save_file(stored, folder / name, {"format": "pt"})
        del stored
        (folder / ORDINARY).unlink()
        write_atomically(folder / "config.json", as_text(refusing_config(recipe.variant)))
    sidecar = Sidecar(
        recipe=recipe,
        config=None if weights_alone else {**model.config.to_dict(), "architectures": [type(model).__name__]},
        weights=name,
        sha256=hash_of_files([folder / name]),
        parameters={key: tuple(tensor.shape) for key, tensor in added.items()},
    )
    write_atomically(folder / SIDECAR, as_text(sidecar.to_json()))
