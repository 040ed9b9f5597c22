"""Folders of treated models: the sidecar attnscope.json, and how such a folder is loaded.

    config.json            a model type that transformers does not know, with a sentence that says why
    treated.safetensors    every weight, including those that the variant added
    attnscope.json         variant, blocks, heads, settings, the model's own configuration, and the hash of the weights

transformers alone must not load such a folder as the plain model. Its Auto classes refuse the unknown model type. A
class that is called directly (`LlamaForCausalLM.from_pretrained`) fails on the sentence that replaces the sizes, and
shows it. The file of weights has a name that transformers does not look for.
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
from attnscope.hf.loading.model_files import hash_of_files

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
    parameters: dict[str, tuple[int, ...]]  # shapes of the variant's parameters, by name
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
        f"attnscope replaced the attention of this model ({variant}), and transformers alone would compute another "
        "model: load this folder with attnscope."
    )
    return {"model_type": MODEL_TYPE, "attnscope": sentence, **dict.fromkeys(_SIZES, sentence)}


def sidecar_in(folder: Path) -> Sidecar | None:
    """Return the sidecar of a treated folder, or None; refuse one that cannot be used."""
    path = folder / SIDECAR
    if not path.is_file():
        return None
    document = read_document(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RefusalError(f"{path} was not written by save_treated: fetch the folder again, or remove the file.")
    if document.get("version") != VERSION:
        raise RefusalError(
            f"{path} was written by attnscope {document.get('attnscope')!s:.40} in version "
            f"{document.get('version')!s:.40} of its format, and attnscope {__version__} reads version {VERSION}: "
            "install the other attnscope, or save the model again with this one."
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
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RefusalError(f"{path} is damaged ({error!r:.100}): save the model again.") from error


def refuse_changed_weights(folder: Path, sidecar: Sidecar) -> None:
    """Refuse weights whose hash is not the one in the sidecar."""
    file = folder / sidecar.weights
    if not file.is_file():
        raise RefusalError(f"The weights of the treated model, {file}, are missing: fetch the folder again.")
    if hash_of_files([file]) != sidecar.sha256:
        raise RefusalError(
            f"{file} does not have the hash in {SIDECAR}: save the model again with attnscope.save_treated, or fetch "
            "the folder again."
        )


def put_back(model: nn.Module, folder: Path, sidecar: Sidecar) -> None:
    """Install the saved variant, with its tensors, permanently."""
    if sidecar.config is None:
        return  # the variant changed only weights, which are loaded already
    from attnscope.hf.exchanging.exchange import exchange  # imports torch, which is not needed to refuse a name

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
            f"{folder / SIDECAR} lists other tensors than {recipe.variant} has in this version of attnscope: save the "
            "model again with this version."
        )
    with safe_open(folder / sidecar.weights, framework="pt") as stored:
        for name, tensor in own.items():
            tensor.copy_(stored.get_tensor(name))


def as_text(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()
