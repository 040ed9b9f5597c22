"""Options for loading a model (`Loading`) and for cutting a corpus (`Sampling`).

Twins take them as `loading=` and `sampling=`, or their fields as keywords: `scan("pocket", dtype="float64")`.
Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, ParamSpec, TypedDict, TypeVar, get_type_hints

from attnscope.core.errors import RefusalError, nearest, one_of
from attnscope.core.files import named_path, read_document
from attnscope.core.stamp import refuse_unusable_seed

AUTO = "auto"
DISK = "disk"
DeviceMap = str | Path | Mapping[str, str | int]

_WANTED = 'a JSON file like {"": "cpu", "model.layers.20": "disk"}, or auto'


def read_device_map(source: DeviceMap) -> Mapping[str, str | int] | None:
    """Return the device of each part of a model, or None for `auto`.

    `{"": "cpu", "model.layers.20": "disk"}` puts block 20 on disk and the rest on the CPU. A name includes everything
    below it, and the longest match wins.
    """
    if isinstance(source, str) and source == AUTO:
        return None
    where = "The device map" if isinstance(source, Mapping) else f"The device map {source}"
    read: Any = source if isinstance(source, Mapping) else read_document(named_path(source, "device map"), _WANTED)
    if not isinstance(read, Mapping) or not all(isinstance(name, str) for name in read):
        raise RefusalError(f"{where} is not a mapping from parts of a model to devices: give {_WANTED}.")
    for name, device in read.items():
        if isinstance(device, bool) or not isinstance(device, str | int):
            raise RefusalError(
                f"{where} puts '{name}' on {device!r:.40}, which is not a device: write cpu, disk, cuda:0 or a number."
            )
    if not read:
        raise RefusalError(f"{where} is empty: give {_WANTED}.")
    return read


def spread(device_map: Mapping[str, str | int], tree: Mapping[str, Iterable[str]], name: str) -> dict[str, str | int]:
    """Return the device map split into parts that do not overlap, as accelerate needs it.

    `tree` maps every module to its child modules and its own parameters.
    """
    below = {part for parts in tree.values() for part in parts}
    for part in device_map:
        if part and part not in below:
            raise RefusalError(
                f"The device map names '{part}', but {name} has no such part: use the module names of its weights."
                f"{nearest(part, (path for path in tree if path))}"
            )
    out: dict[str, str | int] = {}

    def assign(path: str, device_above: str | int | None) -> None:
        device = device_map.get(path, device_above)
        inside = f"{path}." if path else ""
        if any(part.startswith(inside) for part in device_map if part != path):
            for part in tree.get(path, ()):
                assign(part, device)
        else:
            out[path] = "" if device is None else device

    assign("", None)
    if missing := [part for part in out if out[part] == ""]:
        raise RefusalError(
            f"The device map leaves out '{missing[0]}' of {name}: add it, or a device for all the rest such as "
            '"": "cpu".'
        )
    return out


BOS = ("auto", "yes", "no")
DTYPES = ("float32", "float64", "bfloat16", "float16", "auto")


@dataclass(frozen=True)
class Loading:
    """How a model is loaded, and whether its files may run code."""

    dtype: str = "float32"
    device: str = "cpu"
    random_init: bool = False
    seed: int = 0  # for random weights
    allow_pickle: bool = False
    trust_remote_code: bool = False
    revision: str | None = None
    device_map: DeviceMap | None = None  # the device of each part of the model
    stream_weights: bool = False  # every block stays on disk until it runs

    def __post_init__(self) -> None:
        refuse_unusable_seed(self.seed)
        one_of(self.dtype, DTYPES, "dtype")


@dataclass(frozen=True)
class Sampling:
    """Which sequences of a corpus are read, and how many at a time."""

    samples: int | None = None  # maximum number of sequences; None: the whole corpus
    max_tokens: int | None = None  # in one sequence; None: 256, or the model's limit if that is less
    batch_size: int = 8
    seed: int = 0  # for the choice of sequences, and for random tokens
    field: str = "text"  # the field or column of text in .jsonl and .parquet files
    bos: str = "auto"  # whether sequences begin with BOS; auto: as the tokenizer does
    short: bool = False  # accept a corpus that is shorter than one sequence
    spread: bool = False  # from as many documents as possible

    def __post_init__(self) -> None:
        refuse_unusable_seed(self.seed)
        one_of(self.bos, BOS, "bos")


# Keywords that twins accept instead of `loading=Loading(...)` and `sampling=Sampling(...)`.


class LoadingOptions(TypedDict, total=False):
    dtype: str
    device: str
    random_init: bool
    allow_pickle: bool
    trust_remote_code: bool


class TextOptions(LoadingOptions, total=False):
    seed: int
    bos: str


class EvaluateOptions(TextOptions, total=False):
    samples: int
    max_tokens: int


class CorpusOptions(LoadingOptions, total=False):
    samples: int
    max_tokens: int | None
    batch_size: int
    field: str
    bos: str


class SeededCorpusOptions(CorpusOptions, total=False):
    seed: int


class ScanOptions(SeededCorpusOptions, total=False):
    device_map: DeviceMap | None
    stream_weights: bool
    workers: int | None
    engine: str
    address: str | None
    gpus_per_worker: float


class LoadOptions(LoadingOptions, total=False):
    seed: int
    revision: str | None
    device_map: DeviceMap | None
    stream_weights: bool


P = ParamSpec("P")
R = TypeVar("R")


def with_options(options: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function with a parameter `loading` or `sampling` also take the fields of these as keyword arguments.

    `options` is the TypedDict of the keywords. A keyword replaces one field of the request that was passed, or of its
    default. `inspect.signature` lists the keywords with their types and defaults.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return expanded(function, get_type_hints(options), signature(function))

    return decorate


def expanded(
    function: Callable[P, R], keywords: Mapping[str, Any], shape: Signature, *, hidden: bool = False
) -> Callable[P, R]:
    """Wrap `function` so that the fields of its requests become keyword arguments.

    A request is a parameter whose default is a dataclass. `keywords` maps each field to its annotation. With `hidden`,
    a request is set by keywords only.
    """
    defaults = {name: parameter.default for name, parameter in shape.parameters.items()}
    requests = {name: default for name, default in defaults.items() if _is_request(default)}
    shared = {name: [f.name for f in fields(request) if f.name in keywords] for name, request in requests.items()}
    parameters: dict[str, Parameter] = {}
    for name, parameter in shape.parameters.items():
        for keyword in shared.get(name, ()):
            default, annotation = getattr(parameter.default, keyword), keywords[keyword]
            parameters.setdefault(keyword, Parameter(keyword, parameter.kind, default=default, annotation=annotation))
        if parameter.kind is not Parameter.VAR_KEYWORD and not (hidden and name in requests):
            parameters[name] = parameter

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for unknown in kwargs.keys() - parameters.keys():
            raise RefusalError(f"{function.__name__}() has no parameter '{unknown}'.{nearest(unknown, parameters)}")
        passed: dict[str, Any] = {name: value for name, value in kwargs.items() if name not in keywords}
        for name, default in requests.items():
            request = passed.get(name, default)
            if not isinstance(request, type(default)):
                raise RefusalError(f"{name}= takes a {type(default).__name__}, not a {type(request).__name__}.")
            passed[name] = replace(request, **{word: kwargs[word] for word in shared[name] if word in kwargs})
        return function(*args, **passed)

    call.__signature__ = shape.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]
    call.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return call


def _is_request(default: object) -> bool:
    return is_dataclass(default) and not isinstance(default, type)
