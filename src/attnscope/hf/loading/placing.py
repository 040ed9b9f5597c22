"""Models that do not fit where they run: spread over devices, memory and disk, or left on disk block by block.

    load("./large", device_map="auto")              as much as fits on accelerators, then in memory, the rest on disk
    load("./large", device_map="map.json")          as a file says, part by part
    load("./large", stream_weights=True)            every block on disk, the rest in memory

accelerate's hooks bring the weights of a module when it runs and take them away after it. From safetensors nothing is
copied: weights are read from where they are, also where they are cast on the way.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.hf.loading.device_map import DISK, read_device_map, spread
from attnscope.hf.loading.devices import device_named
from attnscope.hf.loading.options import Loading
from attnscope.hf.loading.room import memory_left, skeleton
from attnscope.hf.loading.sources import Source

_SHARE_OF_MEMORY = 0.8  # what `auto` fills of what is free: activations and statistics need some too


def is_spread(loading: Loading) -> bool:
    return loading.device_map is not None or loading.stream_weights


def refuse_what_cannot_be_spread(found: Source, loading: Loading) -> None:
    """One way at a time, and only weights that can be read in parts."""
    if loading.device_map is not None and loading.stream_weights:
        raise RefusalError(
            "--stream-weights leaves every block on disk and --device-map says itself what lies there: give one."
        )
    if loading.device_map is not None and loading.device not in ("cpu", "auto"):
        raise RefusalError("--device-map says where everything goes: leave --device out, or give --device alone.")
    way = "--stream-weights" if loading.stream_weights else "--device-map"
    if find_spec("accelerate") is None:
        raise RefusalError(f"{way} needs the package accelerate: pip install 'attnscope[large]'.")
    if loading.random_init:
        raise RefusalError(f"{way} reads weights in parts, and random ones are made in memory: leave one of them out.")
    if found.form != "safetensors":
        form = {"gguf": "a GGUF file, which is unpacked as a whole", "pickle": "a pickle"}.get(found.form, found.form)
        raise RefusalError(f"{way} reads weights in parts, and {found.name} is {form}: save it as safetensors first.")
    if found.treated is not None:
        raise RefusalError(f"The attention of {found.name} was exchanged, which {way} does not bear: leave it out.")
    if loading.trust_remote_code and "auto_map" in found.config:
        raise RefusalError(f"{way} needs to know the parts of a model before it is built: not with code of its own.")


def spread_options(cls: Any, config: Any, precision: torch.dtype | None, loading: Loading, name: str) -> dict[str, Any]:
    """What `from_pretrained` is told."""
    folder = tempfile.mkdtemp(prefix="attnscope-offload-")
    try:
        return {"offload_folder": folder, **_device_map(cls, config, precision, loading, name)}
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def keep_while_used(model: nn.Module, folder: str) -> None:
    """The folder of what had to be written anew goes when the model does."""
    weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)


def placed_where(model: nn.Module) -> dict[str, int]:
    """Parameters by place, for the provenance."""
    count: Counter[str] = Counter()
    told: Mapping[str, Any] = getattr(model, "hf_device_map", {})
    for name, parameter in model.named_parameters():
        fitting = [part for part in told if not part or name == part or name.startswith(f"{part}.")]
        count[str(told[max(fitting, key=len)]) if fitting else str(parameter.device)] += parameter.numel()
    return dict(sorted(count.items()))


def _device_map(cls: Any, config: Any, precision: torch.dtype | None, loading: Loading, name: str) -> dict[str, Any]:
    empty = skeleton(cls, config)
    if loading.stream_weights:
        place = str(device_named(loading.device))
        asked: dict[str, str | int] = {"": place, **dict.fromkeys(_blocks(empty), DISK)}
        if len(asked) == 1:
            raise RefusalError(f"{name} has no list of blocks for --stream-weights to stream: leave it out.")
        _refuse_large_parts(empty, asked, precision, name)
        return {"device_map": spread(asked, _tree(empty), name)}
    assert loading.device_map is not None
    read = read_device_map(loading.device_map)
    if read is None:
        if torch.accelerator.is_available():
            return {"device_map": "auto"}
        return {"device_map": "auto", "max_memory": {"cpu": int(_SHARE_OF_MEMORY * memory_left())}}
    parts = spread(read, _tree(empty), name)
    return {"device_map": {part: _device(device) for part, device in parts.items()}}


def _device(asked: str | int) -> str | int:
    if asked == DISK:
        return DISK
    if isinstance(asked, int):
        kind = torch.accelerator.current_accelerator(check_available=True)
        return str(device_named(f"{'cuda' if kind is None else kind.type}:{asked}"))
    return str(device_named(asked))


def _tree(model: nn.Module) -> dict[str, list[str]]:
    """What is right below every module: modules, and parameters and buffers of its own."""
    return {
        path: [
            f"{path}.{name}".lstrip(".")
            for name, _ in (
                *module.named_children(),
                *module.named_parameters(recurse=False),
                *module.named_buffers(recurse=False),
            )
        ]
        for path, module in model.named_modules(remove_duplicate=False)
    }


def _blocks(model: nn.Module) -> Iterator[str]:
    """Entries of the outermost lists of modules."""
    lists = [path for path, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    for path in lists:
        if not any(path.startswith(f"{other}.") for other in lists):
            for name, block in model.get_submodule(path).named_children():
                if any(True for _ in block.parameters()):
                    yield f"{path}.{name}"


def _refuse_large_parts(model: nn.Module, asked: Mapping[str, Any], precision: torch.dtype | None, name: str) -> None:
    width = 2 if precision is None else precision.itemsize
    sizes = {path: sum(p.numel() for p in model.get_submodule(path).parameters()) for path in asked if path}
    rest = sum(parameter.numel() for parameter in model.parameters()) - sum(sizes.values())
    needed, free = width * (rest + max(sizes.values())), memory_left()
    if needed > free:
        raise RefusalError(
            f"The largest block of {name} and what is outside its blocks take {needed / 1e9:,.0f} GB together, and "
            f"{free / 1e9:,.0f} GB of memory are free: pass --dtype bfloat16, or use a larger machine."
        )
