"""Large models: check that one fits into memory, or spread it over devices, memory and disk.

    load("./large", device_map="auto")              fill accelerators, then memory; put the rest on disk
    load("./large", device_map="map.json")          place each part as a file says
    load("./large", stream_weights=True)            leave every block on disk, and the rest in memory

The hooks of accelerate load the weights of a module before it runs and drop them afterwards. They are read from the
safetensors files directly, without a copy on disk.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from importlib.util import find_spec
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from transformers.initialization import no_init_weights

from attnscope.core.errors import RefusalError
from attnscope.hf.loading.classes import device_named
from attnscope.hf.loading.memory import memory_left
from attnscope.hf.loading.options import DISK, Loading, read_device_map, spread
from attnscope.hf.loading.sources import Source

# Whether a model fits into memory is checked before it is built. A copy on torch's meta device gives the number of
# parameters. For very deep configurations this number is extrapolated from copies with two blocks and with three: a
# million blocks would take hours to build even without weights.

DEEP = 512  # a configuration of up to this many blocks is built in full, which takes a second
MOST_MODULES = 100_000  # the largest mixtures of experts have 60,000; their copy takes a minute
IMPOSSIBLE = 10**15  # blocks; a larger number is too long for a sentence
BYTES_OF_A_BLOCK = 30_000  # size of its Python objects, in addition to its weights

_LAYERS = re.compile(r"(num_|n_)?(\w+_)?(layers?|depth|blocks?)")


class _TooManyModulesError(Exception):
    pass


def refuse_what_memory_cannot_hold(cls: Any, config: Any, precision: torch.dtype | None, name: str) -> None:
    """Refuse a model that is too large. If no meta copy can be made, do nothing: loading raises the error."""
    blocks = sum(int(getattr(owner, key)) for owner, key in _deep(config))
    if blocks >= IMPOSSIBLE:
        raise RefusalError(_too_deep(name, blocks))
    try:
        parameters = _parameters(cls, config)
    except _TooManyModulesError:
        raise RefusalError(
            f"The configuration of {name} has more than {MOST_MODULES:,} modules, which would take hours to "
            "build: make its sizes smaller."
        ) from None
    except Exception:
        if blocks < MOST_MODULES:
            return
        raise RefusalError(_too_deep(name, blocks)) from None
    width = 2 if precision is None else precision.itemsize
    needed, free = parameters * width + blocks * BYTES_OF_A_BLOCK, memory_left()
    if needed > free:
        inside = f" in {blocks:,} blocks" if blocks else ""
        smaller = "" if width == 2 else ", or pass `dtype='bfloat16'` to halve it"
        raise RefusalError(
            f"{name} has {parameters:,} parameters{inside}, which take {needed / 1e9:,.0f} GB, and only "
            f"{free / 1e9:,.0f} GB of memory are free: give a smaller model{smaller}."
        )
    if blocks > MOST_MODULES:
        raise RefusalError(_too_deep(name, blocks))


def _too_deep(name: str, blocks: int) -> str:
    many = f"{blocks:,}" if blocks < IMPOSSIBLE else "more than 10^15"
    return f"The configuration of {name} has {many} blocks, which would take hours to build: give it fewer."


def _parameters(cls: Any, config: Any) -> int:
    """Count the parameters of a model, extrapolating from two and three blocks if it is very deep."""
    deep = [(owner, key, int(getattr(owner, key))) for owner, key in _deep(config)]
    if not deep:
        return _count(cls, config)
    shallow = deepcopy(config)
    places = list(_deep(shallow))
    for owner, key in places:
        setattr(owner, key, 2)
    total = base = _count(cls, shallow)
    for (owner, key), (_, _, layers) in zip(places, deep, strict=True):
        setattr(owner, key, 3)
        total += (_count(cls, shallow) - base) * (layers - 2)
        setattr(owner, key, 2)
    return total


def _deep(config: Any) -> Iterator[tuple[Any, str]]:
    """Yield the settings that ask for more than `DEEP` blocks, including those of nested configurations."""
    for key, value in vars(config).items():
        if isinstance(value, transformers.PreTrainedConfig):
            yield from _deep(value)
        elif isinstance(value, int) and value > DEEP and _LAYERS.fullmatch(key):
            yield config, key


def _count(cls: Any, config: Any) -> int:
    made = 0

    def counted(*_: Any) -> None:
        nonlocal made
        made += 1
        if made > MOST_MODULES:
            raise _TooManyModulesError

    watch = register_module_module_registration_hook(counted)
    try:
        model = skeleton(cls, config)
    finally:
        watch.remove()
    return sum(int(parameter.numel()) for parameter in model.parameters())


def skeleton(cls: Any, config: Any) -> nn.Module:
    """Return the model on the meta device: all modules and shapes, without weights."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"), no_init_weights():
        model: Any = cls._from_config(deepcopy(config))
        model.tie_weights()  # so that an embedding that is also the output projection counts once
    assert isinstance(model, nn.Module)
    return model


_SHARE_OF_MEMORY = 0.8  # the share of free memory that `auto` fills: activations and statistics need some too


def is_spread(loading: Loading) -> bool:
    return loading.device_map is not None or loading.stream_weights


def refuse_what_cannot_be_spread(origin: Source, loading: Loading) -> None:
    """Refuse options that exclude each other, and weights that cannot be read in parts."""
    if loading.device_map is not None and loading.stream_weights:
        raise RefusalError(
            "`stream_weights=True` leaves every block on disk and `device_map=` chooses what goes there: give only one."
        )
    if loading.device_map is not None and loading.device not in ("cpu", "auto"):
        raise RefusalError("`device_map=` and `device=` exclude each other: give only one.")
    way = "`stream_weights=`" if loading.stream_weights else "`device_map=`"
    if find_spec("accelerate") is None:
        raise RefusalError(f"{way} needs the package accelerate: pip install 'attnscope[large]'.")
    if loading.random_init:
        raise RefusalError(f"{way} reads weights from files, and `random_init=True` has none: leave one of them out.")
    if origin.form != "safetensors":
        form = {"gguf": "a GGUF file, which is unpacked as a whole", "pickle": "a pickle"}.get(origin.form, origin.form)
        raise RefusalError(f"{way} reads weights in parts, and {origin.name} is {form}: save it as safetensors first.")
    if origin.treated is not None:
        raise RefusalError(f"{way} does not support treated models such as {origin.name}: leave it out.")
    if loading.trust_remote_code and "auto_map" in origin.config:
        raise RefusalError(f"{way} does not support models that bring their own code: leave it out.")


def spread_options(cls: Any, config: Any, precision: torch.dtype | None, loading: Loading, name: str) -> dict[str, Any]:
    """Return the options of `from_pretrained` that spread a model."""
    folder = tempfile.mkdtemp(prefix="attnscope-offload-")
    try:
        return {"offload_folder": folder, **_device_map(cls, config, precision, loading, name)}
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def keep_while_used(model: nn.Module, folder: str) -> None:
    """Remove the offload folder when the model is deleted."""
    weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)


def placed_where(model: nn.Module) -> dict[str, int]:
    """Return how many parameters are on each device, for the provenance."""
    count: Counter[str] = Counter()
    device_map: Mapping[str, Any] = getattr(model, "hf_device_map", {})
    for name, parameter in model.named_parameters():
        fitting = [part for part in device_map if not part or name == part or name.startswith(f"{part}.")]
        count[str(device_map[max(fitting, key=len)]) if fitting else str(parameter.device)] += parameter.numel()
    return dict(sorted(count.items()))


def _device_map(cls: Any, config: Any, precision: torch.dtype | None, loading: Loading, name: str) -> dict[str, Any]:
    empty = skeleton(cls, config)
    if loading.stream_weights:
        device = str(device_named(loading.device))
        wanted: dict[str, str | int] = {"": device, **dict.fromkeys(_blocks(empty), DISK)}
        if len(wanted) == 1:
            raise RefusalError(f"{name} has no list of blocks for `stream_weights=True` to stream: leave it out.")
        _refuse_large_parts(empty, wanted, precision, name)
        return {"device_map": spread(wanted, _tree(empty), name)}
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
    """Map the path of every module to the paths of its children, parameters and buffers."""
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
    """Yield the paths of the entries of the outermost module lists."""
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
            f"The largest block of {name} and the weights outside its blocks take {needed / 1e9:,.0f} GB together, and "
            f"only {free / 1e9:,.0f} GB of memory are free: pass `dtype='bfloat16'`, or use a larger machine."
        )
