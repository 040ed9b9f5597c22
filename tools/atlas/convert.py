"""Make a transformers folder of each checkpoint of the atlas: configuration, float32 safetensors, tokenizer.

    python -m tools.atlas.convert                     every checkpoint
    python -m tools.atlas.convert gemma3-270m mpnet   only these
    convert.folder("mpnet")                           the same from Python; returns the folder

Loading is strict. Every stored tensor must belong to the model, and every parameter of the model must be stored or tied
to one that is. Tensors that a table entry names in `dropped` (heads that no transformers class has, buffers) are left
out. Pickles are read with weights_only=True.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tools.atlas.checkpoints import CHECKPOINTS
from tools.atlas.entry import Checkpoint
from tools.atlas.packages import unpacked
from tools.fetch_models import ROOT

ATLAS = ROOT / ".weights" / "atlas"


def folder(name: str) -> Path:
    """Return the folder of a checkpoint; fetch and convert it first if needed."""
    checkpoint, target = CHECKPOINTS[name], ATLAS / name
    receipt = target / ".converted"
    if not receipt.is_file() or receipt.read_text(encoding="utf-8") != checkpoint.receipt:
        raw = unpacked(checkpoint.packages, ATLAS / ".raw" / name)
        made = ATLAS / f".made-{name}"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        _convert(checkpoint, raw, made)
        (made / ".converted").write_text(checkpoint.receipt, encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        made.replace(target)
        shutil.rmtree(raw)
    return target


def _convert(checkpoint: Checkpoint, raw: Path, made: Path) -> None:
    from tools.atlas import layouts

    read = getattr(layouts, checkpoint.layout)
    model, state, tokenizer = read(raw, checkpoint.settings)
    if state is not None:
        load_strictly(model, renamed(state, checkpoint), checkpoint.name)
        out = {name: tensor.numpy() for name, tensor in state.items() if _is_dropped(name, checkpoint)}
        if out:
            np.savez(made / "left_out.npz", **out)  # checks of classifiers need their heads
    model.float().eval().save_pretrained(made)
    again = type(model).from_pretrained(made)
    if weights_digest(again) != weights_digest(model):
        raise SystemExit(f"{checkpoint.name}: the saved folder loads other weights than were saved.")
    if tokenizer is not None:
        tokenizer.save_pretrained(made)
    for file in raw.glob("preprocessor_config.json"):
        shutil.copy(file, made)


def renamed(state: dict[str, Tensor], checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the state with dropped tensors left out and names replaced."""
    result: dict[str, Tensor] = {}
    for old, tensor in state.items():
        if _is_dropped(old, checkpoint):
            continue
        new = old
        for pattern, replacement in checkpoint.renames:
            new = re.sub(pattern, replacement, new)
        if new in result and not torch.equal(result[new], tensor):
            raise SystemExit(f"{checkpoint.name}: two tensors are named {new}.")
        result[new] = tensor
    return result


def _is_dropped(name: str, checkpoint: Checkpoint) -> bool:
    return any(re.search(pattern, name) for pattern in checkpoint.dropped)


def load_strictly(model: Any, state: dict[str, Tensor], name: str) -> None:
    """Load every tensor. Raise SystemExit if one is left over, or a parameter is neither stored nor tied."""
    places = model.state_dict(keep_vars=True)
    stored = {places[key].data_ptr() for key in state if key in places}
    poolers = {key for key in places if re.search(r"(^|\.)pooler\.dense\.(weight|bias)$", key)}
    computed = [place for place, part in model.named_modules() if "Sinusoidal" in type(part).__name__]
    lacking = [
        key
        for key, tensor in places.items()
        if key not in state
        and tensor.data_ptr() not in stored
        and isinstance(tensor, torch.nn.Parameter)
        and key.rpartition(".")[0] not in computed
    ]
    if set(lacking) == poolers:  # a pooler that was not exported has no part in attention; attnscope reports it
        lacking = []
    left_over = [key for key in state if key not in places]
    wrong = [key for key in state if key in places and places[key].shape != state[key].shape]
    if lacking or left_over or wrong:
        raise SystemExit(f"{name}: lacking {lacking[:8]}, left over {left_over[:8]}, of another shape {wrong[:8]}.")
    model.load_state_dict(state, strict=False)
    _hold(model, state, name)


def _hold(model: Any, state: dict[str, Tensor], name: str) -> None:
    """Raise SystemExit unless the model now holds every stored value.

    Two stored tensors may share one parameter (tied embeddings): the second overwrites the first. That is right only if
    they are equal, or equal up to quantisation, since each copy is quantised by itself.
    """
    places = model.state_dict()
    for key, tensor in state.items():
        difference = float((places[key].float() - tensor.float()).abs().mean())
        if difference > 0.02 * float(tensor.float().abs().mean()):
            raise SystemExit(f"{name}: {key} is not what was stored (mean difference {difference:.3g}): wrongly tied.")


def weights_digest(model: Any) -> str:
    """Return a digest of the parameters' values, to find equal checkpoints."""
    import hashlib

    digest = hashlib.sha256()
    for _, parameter in sorted(model.named_parameters()):
        digest.update(parameter.detach().contiguous().float().numpy().tobytes())
    return digest.hexdigest()


def main(names: list[str]) -> None:
    for name in names or CHECKPOINTS:
        try:
            place = folder(name)
        except (SystemExit, Exception) as error:  # one that fails must not keep the others from being made
            print(f"{name:28} FAILED {type(error).__name__}: {error}", flush=True)
            continue
        size = sum(file.stat().st_size for file in place.glob("*.safetensors"))
        config = json.loads((place / "config.json").read_text(encoding="utf-8"))
        print(f"{name:28} {size / 1e6:7.1f} MB  {config['model_type']}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
