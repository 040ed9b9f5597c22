"""Find the folder, the configuration and the weight files of a model that is given by name or path.

Missing and damaged files are refused here, before transformers reads them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path, neighbour_meant
from attnscope.hf.loading.options import Loading
from attnscope.hf.loading.treated import MODEL_TYPE, SIDECAR, Sidecar, refuse_changed_weights, sidecar_in

Form = Literal["safetensors", "pickle", "gguf", "config"]

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_POINTER = b"version https://git-lfs"  # begins a pointer, which replaces a large file in a clone without git-lfs
_SETTINGS = ("*.json", "*.txt", "*.model", "*.jinja")
_SAFETENSORS = ("model.safetensors", "model-*.safetensors")
_PICKLES = ("pytorch_model.bin", "pytorch_model-*.bin")


@dataclass(frozen=True)
class Source:
    """The files of a model. `config` is config.json (empty for GGUF); `weights` are the files to hash."""

    name: str
    folder: Path
    form: Form
    config: dict[str, Any]
    weights: tuple[Path, ...]
    treated: Sidecar | None = None  # the sidecar of a treated model

    @property
    def gguf_file(self) -> str | None:
        return self.weights[0].name if self.form == "gguf" else None


def find(source: str | Path, loading: Loading) -> Source:
    """Return the files of a model; refuse missing and damaged ones."""
    if str(source) == "pocket" and not _may_be_a_model(Path("pocket")):
        return _in_folder(Path(str(resources.files("attnscope.data").joinpath("pocket"))), "pocket", loading)
    if not str(source).strip():
        raise RefusalError("The model argument is empty: name a folder, a hub name, a .gguf file, or 'pocket'.")
    path = named_path(source, "model")
    if path.is_dir():
        return _in_folder(path, path.resolve().name, loading)
    if path.is_file():
        return _from_file(path, loading)
    if isinstance(source, Path) or not _HUB_NAME.fullmatch(source) or path.suffix in (".gguf", ".json"):
        raise RefusalError(
            f"There is no model at '{source}': check the path, or give a hub name like 'gpt2'.{_meant(path)}"
        )
    return _in_folder(_from_hub(source, loading), source, loading)


def _may_be_a_model(path: Path) -> bool:
    """Return whether a path may be a model: a file, or a folder with model files (files of a scan do not count)."""
    if not path.is_dir():
        return path.exists()
    suffixes = (".safetensors", ".gguf", ".bin")
    return any(file.name == "config.json" or file.suffix in suffixes for file in path.iterdir())


def _meant(path: Path) -> str:
    return neighbour_meant(path, "pocket")


def _from_file(path: Path, loading: Loading) -> Source:
    if path.suffix == ".gguf":
        return Source(path.stem, path.parent, "gguf", {}, (_not_a_pointer(path),))
    if path.suffix != ".json":
        raise RefusalError(
            f"{path} is not a model: give the folder that holds config.json and the weights, a .gguf file, "
            "or a config.json with `random_init=True`."
        )
    config = _config(path)
    if not loading.random_init:
        raise RefusalError(
            f"{path} is a configuration without weights: pass `random_init=True` to use random weights, or give the "
            "folder that holds the weights too."
        )
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return Source(name, path.parent, "config", config, ())


def _in_folder(folder: Path, name: str, loading: Loading) -> Source:
    inside = sorted(path.name for path in folder.iterdir())
    if not inside:
        raise RefusalError(f"The model folder {folder} is empty: it needs config.json and model.safetensors.")
    if "config.json" not in inside:
        raise RefusalError(_without_config(folder, inside))
    config = _config(folder / "config.json")
    treated = sidecar_in(folder)
    if treated is not None:
        return _treated(folder, name, config, treated, loading)
    if config["model_type"] == MODEL_TYPE:
        raise RefusalError(f"{folder} holds a treated model, and its file {SIDECAR} is missing: fetch that file too.")
    if loading.random_init:
        return Source(name, folder, "config", config, ())
    if "model.safetensors" in inside:
        files = [folder / "model.safetensors"]
        return Source(name, folder, "safetensors", config, tuple(map(_whole_safetensors, files)))
    if "model.safetensors.index.json" in inside:
        files = _shards(folder / "model.safetensors.index.json")
        return Source(name, folder, "safetensors", config, tuple(map(_whole_safetensors, files)))
    pickles = [folder / file for file in inside if re.fullmatch(r"pytorch_model(-.*)?\.bin", file)]
    if not pickles:
        raise RefusalError(
            f"{folder} has a configuration but no weights (model.safetensors): add them, or pass "
            "`random_init=True` to use random weights."
        )
    if not loading.allow_pickle:
        raise RefusalError(
            f"The weights in {folder} are a pickle ({pickles[0].name}): pass `allow_pickle=True` to load its "
            "tensors, or convert it to safetensors."
        )
    return Source(name, folder, "pickle", config, tuple(map(_not_a_pointer, pickles)))


def _treated(folder: Path, name: str, config: dict[str, Any], treated: Sidecar, loading: Loading) -> Source:
    if loading.random_init:
        raise RefusalError(f"{folder} holds a treated model, which has its own weights: leave `random_init=` out.")
    refuse_changed_weights(folder, treated)
    weights = (_whole_safetensors(folder / treated.weights),)
    return Source(name, folder, "safetensors", treated.config or config, weights, treated)


def _without_config(folder: Path, inside: list[str]) -> str:
    if gguf := [file for file in inside if file.endswith(".gguf")]:
        return f"{folder} holds GGUF weights: give the file itself, {folder / gguf[0]}."
    if "adapter_config.json" in inside:
        return f"{folder} holds an adapter only: merge it into its model first, and give that folder."
    return f"{folder} has no config.json: give a model folder as transformers' save_pretrained writes it."


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RefusalError(f"{path} cannot be read as JSON ({error}): fetch or write it again.") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise RefusalError(f'{path} does not name an architecture: add a model_type, such as "model_type": "llama".')
    return config


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        files = [index.parent / name for name in names]
        absent = [file.name for file in files if not file.is_file()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RefusalError(f"{index} is not a list of weight files ({error!r:.200}): fetch it again.") from error
    if not files:
        raise RefusalError(f"{index} names no weight files: fetch it again.")
    if absent:
        raise RefusalError(
            f"{len(absent)} of {len(files)} weight files are missing in {index.parent}, such as {absent[0]}: "
            "fetch them."
        )
    return files


def _whole_safetensors(path: Path) -> Path:
    """Refuse a damaged file. Opening it compares its header with its length, and reads no tensor."""
    try:
        with safe_open(_not_a_pointer(path), framework="np"):  # without torch
            return path
    except (SafetensorError, OSError) as error:
        raise RefusalError(
            f"{path} is damaged or cut short ({error}): fetch it again, and compare its size or hash."
        ) from error


def _not_a_pointer(path: Path) -> Path:
    with path.open("rb") as handle:
        if handle.read(len(_POINTER)) == _POINTER:
            raise RefusalError(f"{path} is a git-lfs pointer, not the file itself: run git lfs pull there.")
    return path


def _from_hub(name: str, loading: Loading) -> Path:
    """Return the cached folder of a hub model; download it if needed."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    wanted = [*_SETTINGS, *(["*.py"] if loading.trust_remote_code else [])]
    wanted += [] if loading.random_init else _SAFETENSORS
    try:
        folder = Path(snapshot_download(name, revision=loading.revision, allow_patterns=wanted))
        if loading.allow_pickle and not loading.random_init and not any(folder.glob("model*.safetensors")):
            snapshot_download(name, revision=loading.revision, allow_patterns=[*wanted, *_PICKLES])
        return folder
    except GatedRepoError as error:
        raise RefusalError(f"The hub asks for permission to fetch '{name}': run hf auth login first.") from error
    except RepositoryNotFoundError as error:
        raise RefusalError(
            f"There is no folder '{name}' here and no model '{name}' on the hub: check the name.{_meant(Path(name))}"
        ) from error
    except RevisionNotFoundError as error:
        raise RefusalError(f"'{name}' has no revision '{loading.revision}' on the hub: name another.") from error
    except (OSError, HfHubHTTPError, ValueError) as error:
        at = f" at revision '{loading.revision}'" if loading.revision else ""
        raise RefusalError(
            f"There is no folder '{name}', no copy of it in the local cache{at}, and the hub cannot be "
            f"reached: go online once, or give a model folder or 'pocket'.{_meant(Path(name))}"
        ) from error
