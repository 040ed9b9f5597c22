"""Folders of treated models: the sidecar attnscope.json, and what becomes of it when such a folder is loaded.

    config.json            names a model type that transformers does not know, and says in a sentence why
    treated.safetensors    every weight, those that the variant added under their own names
    attnscope.json         variant, places, settings, the model's own configuration, and the hash of the weights

transformers alone must not take such a folder for the plain model. Its Auto classes refuse the model type; a class that
is named outright (`LlamaForCausalLM.from_pretrained`) stumbles over the sentence that stands where sizes should be, and
shows it; and the weights have a name under which it does not look for them, whatever configuration it is given.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from attnscope import __version__
from attnscope.core.errors import RefusalError
from attnscope.core.files import read_document
from attnscope.hf.exchanging.recipe import PREFIX, InstallRequest, Recipe
from attnscope.hf.loading.hashing import hash_of_files

if TYPE_CHECKING:
    from torch import nn

SIDECAR = "attnscope.json"
WEIGHTS = "treated.safetensors"
MODEL_TYPE = "attnscope_treated"
FORMAT, VERSION = "attnscope-treated", 1
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "n_embd", "n_layer", "d_model", "num_layers", "dim")


@dataclass(frozen=True)
class Sidecar:
    """The content of attnscope.json. `config` is the model's own configuration, or None if config.json holds it."""

    recipe: Recipe
    config: dict[str, Any] | None
    weights: str
    sha256: str
    parameters: dict[str, tuple[int, ...]]  # of the variant, by name: their shapes
    attnscope: str = __version__

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "attnscope": self.attnscope,
            **self.recipe.to_json(),
            "parameters": {name: list(shape) for name, shape in self.parameters.items()},
            "weights": self.weights,
            "sha256": self.sha256,
            "config": self.config,
        }

    def note(self) -> dict[str, Any]:
        """Return a note for the provenance."""
        return {**self.recipe.to_json(), "attnscope": self.attnscope}


def refusing_config(variant: str) -> dict[str, Any]:
    """Return a config.json that transformers refuses to load, with a sentence that says why."""
    sentence = (
        f"The attention of this model was exchanged by attnscope ({variant}), and transformers alone would compute "
        "another model: load this folder with attnscope."
    )
    return {"model_type": MODEL_TYPE, "attnscope": sentence, **dict.fromkeys(_SIZES, sentence)}


def sidecar_in(folder: Path) -> Sidecar | None:
    """Return the sidecar of a treated folder, or None; refuse one that cannot be used."""
    path = folder / SIDECAR
    if not path.is_file():
        return None
    document = read_document(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RefusalError(f"{path} is not what save_treated writes: fetch the folder again, or take the file out.")
    if document.get("version") != VERSION:
        raise RefusalError(
            f"{path} was written by attnscope {document.get('attnscope')} in version {document.get('version')} of its "
            f"format, and this is attnscope {__version__}, which reads version {VERSION}: install that attnscope, or "
            "save the model again with this one."
        )
    try:
        heads = document["heads"]
        return Sidecar(
            recipe=Recipe(
                variant=str(document["variant"]),
                layers=tuple(map(int, document["layers"])),
                heads=None if heads is None else tuple(map(int, heads)),
                stack=str(document["stack"]),
                seed=int(document["seed"]),
                settings=dict(document["settings"]),
            ),
            config=None if document["config"] is None else dict(document["config"]),
            weights=Path(str(document["weights"])).name,
            sha256=str(document["sha256"]),
            parameters={str(name): tuple(map(int, shape)) for name, shape in document["parameters"].items()},
            attnscope=str(document["attnscope"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RefusalError(f"{path} is damaged ({error!r:.100}): save the model again.") from error


def refuse_changed_weights(folder: Path, sidecar: Sidecar) -> None:
    """Refuse weights whose hash is not the one in the sidecar."""
    file = folder / sidecar.weights
    if not file.is_file():
        raise RefusalError(f"The weights of the treated model, {file}, are missing: fetch the folder again.")
    if hash_of_files([file]) != sidecar.sha256:
        raise RefusalError(
            f"{file} is not the file that {SIDECAR} was written for (its hash is another): save the model again with "
            "attnscope.save_treated, or fetch the folder again."
        )


def put_back(model: nn.Module, folder: Path, sidecar: Sidecar) -> None:
    """Install the saved variant, with its tensors, permanently."""
    if sidecar.config is None:
        return  # a change of weights alone: they are the model's own
    from attnscope.hf.exchanging.exchange import exchange  # torch, which a refusal of a name does not need

    recipe, changes = sidecar.recipe, ExitStack()
    layers = None if recipe.variant == "fusion" else recipe.layers
    exchange(
        changes,
        model,
        InstallRequest(recipe.variant, layers, recipe.heads, recipe.stack, recipe.seed, recipe.settings),
    )
    own = {name: tensor for name, tensor in model.state_dict().items() if f".{PREFIX}" in name}
    if {name: tuple(tensor.shape) for name, tensor in own.items()} != sidecar.parameters:
        raise RefusalError(
            f"{folder / SIDECAR} lists other tensors than {recipe.variant} has here: save the model again with this "
            "version of attnscope."
        )
    with safe_open(folder / sidecar.weights, framework="pt") as stored:
        for name, tensor in own.items():
            tensor.copy_(stored.get_tensor(name))


def is_sentence(config: dict[str, Any]) -> bool:
    """Return whether a config.json belongs to a treated folder."""
    return config.get("model_type") == MODEL_TYPE


def as_text(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()
