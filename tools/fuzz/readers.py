"""Every reader of attnscope as a function of bytes, for `make fuzz` and for tests/hardening/test_fuzz_corpus.py.

The rule: any bytes give a value or a RefusalError with one sentence. Nothing else is raised, nothing hangs, nothing
takes more memory than `MEMORY`, nothing is executed, and nothing is written. `check` raises `Broken` otherwise.

Imports are inside the functions, so that atheris can instrument the modules.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

MEMORY = 1 << 30  # bytes that reading one input of at most LONGEST bytes may take
LONGEST = 1 << 16
SECONDS = 5.0  # of processor time for one input
MOST_UNPACKED = (
    1 << 24
)  # bytes and pixels: the bounds of the package are lowered to this, so that a bomb is refused fast
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EXECUTING = (
    "subprocess.Popen",
    "pickle.find_class",
    "marshal.loads",
    "code.__new__",
    "socket.connect",
    "ctypes.dlopen",
)
_IN_OS = ("system", "exec", "posix_spawn", "spawn", "fork", "forkpty", "remove", "rename", "rmdir", "mkdir", "link",
          "symlink", "truncate", "chmod", "chown")  # fmt: skip
_FORBIDDEN = frozenset((*_EXECUTING, *(f"os.{name}" for name in _IN_OS)))


class Broken(BaseException):  # not an Exception: readers that catch all of those must not catch it
    """A reader broke the rule."""


@dataclass(frozen=True)
class Reader:
    """Reads the file `name` in a folder. `form` chooses the mutator; `beside` are fixed files in the same folder."""

    name: str
    read: Callable[[Path], Any]
    form: str = "bytes"
    beside: Mapping[str, bytes] | None = None


def _record(path: Path) -> Any:
    from attnscope.commands.records import load

    return load(path)


def _shards(path: Path) -> Any:
    """Merge a shard alone, and with another of the same plan."""
    from attnscope.commands.scan.survey.merge import merge

    alone = merge(path, partial=True)
    merge([path, path.with_name("b.shard")], partial=True)
    return alone


def _survey(path: Path) -> Any:
    """Read a survey and merge it with another of the same model."""
    from attnscope.commands.scan.survey.merge import merge

    alone = _record(path)
    merge([path, path.with_name("other.json")])
    return alone


def _plan(path: Path) -> Any:
    from attnscope.commands.scan.survey.shards import plan_in
    from attnscope.core.folders import open_folder

    return plan_in(open_folder(path.parent))


def _run(path: Path) -> Any:
    from attnscope.commands.timeline.read import RunReader, read_run

    reader = RunReader(path.parent)
    reader.more()
    return read_run(path.parent)


def _lock(path: Path) -> Any:
    from attnscope.core.locks import held_by_number

    return held_by_number(path)


def _pattern(path: Path) -> Any:
    from attnscope.heads.read_pattern import read_pattern

    return read_pattern(path, normalise=True)


def _head(path: Path) -> Any:
    from attnscope.commands.compile.record import Compiled
    from attnscope.heads.head_file import read_head

    read_head(path)
    return Compiled.load(path)


def _corpus(path: Path) -> Any:
    from attnscope.data.read import read

    return read(path)


def _stream(path: Path) -> Any:
    from attnscope.data.stream import stream

    blocks = stream(path, block=256)
    return [blocks.block(number) for number in range(min(len(blocks), 8))]


def _prompts(path: Path) -> Any:
    from attnscope.data.prompts import prompts

    return prompts(path).sha256


def _labelled(path: Path) -> Any:
    from attnscope.data.prompts import labelled

    return labelled(path, "label")


def _medium(path: Path) -> Any:
    from attnscope.data.medium import medium, readable

    readable(path)
    return medium(path)


def _config(path: Path) -> Any:
    """Read a configuration up to the point where random weights would be made."""
    from attnscope.hf.loading import from_files as loading
    from attnscope.hf.loading.options import Loading
    from attnscope.hf.loading.placing import refuse_what_memory_cannot_hold
    from attnscope.hf.loading.quiet import quiet
    from attnscope.hf.loading.sources import find

    options = Loading(random_init=True)
    origin = find(path, options)
    with quiet(), loading._refusing(origin):
        config = loading._config(origin, options)
        refuse_what_memory_cannot_hold(loading._choices(config, origin)[0], config, None, origin.name)
        return config


def _weights(path: Path) -> Any:
    from attnscope.hf.loading.model_files import hash_of_files, refuse_whole_numbers
    from attnscope.hf.loading.options import Loading
    from attnscope.hf.loading.sources import find

    origin = find(path.parent, Loading())
    refuse_whole_numbers(origin.weights, origin.name)
    return hash_of_files(origin.weights)


def _gguf(path: Path) -> Any:
    from attnscope.hf.loading import from_files as loading
    from attnscope.hf.loading.model_files import open_gguf
    from attnscope.hf.loading.options import Loading
    from attnscope.hf.loading.quiet import quiet
    from attnscope.hf.loading.sources import find

    options = Loading()
    origin = find(path, options)
    with quiet(), loading._refusing(origin), open_gguf(path) as header:
        loading._config(origin, options)
    return header


def _sidecar(path: Path) -> Any:
    from attnscope.hf.loading.treated import sidecar_in

    return sidecar_in(path.parent)


def _device_map(path: Path) -> Any:
    from attnscope.hf.loading.options import read_device_map

    return read_device_map(path)


def _linear_head(path: Path) -> Any:
    from attnscope.commands.explain.embedding_aim import linear_head

    return linear_head(path)


def _training(path: Path) -> Any:
    import torch

    from attnscope.commands.treat.train import Checkpoint

    model = torch.nn.Linear(2, 2)
    optimiser = torch.optim.AdamW(model.parameters())
    losses = Checkpoint(path.with_name("kept"), {"steps": 4}).restore(model, optimiser)
    for parameter in model.parameters():  # a checkpoint that is accepted must be usable
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    return losses


def _part(path: Path) -> Any:
    from attnscope.papers.checkpoints import _read_part

    return _read_part(path)


def _ledger(path: Path) -> Any:
    from unittest.mock import patch

    from attnscope.commands.task_paths.ledger import Ledger

    with patch("attnscope.commands.task_paths.ledger.keep_beside"):  # writes damaged lines to a file beside
        return Ledger(path, {"model": "m"})._restored(path)


def _width(path: Path) -> Any:
    from attnscope.commands.capacity.widths import Shelf

    shelf = Shelf(path.parent)
    shelf._path = lambda point: path  # type: ignore[method-assign]
    point = _point()
    shelf.known.pop(point, None)
    shelf.get(point)
    return shelf.expected_seconds(point)


def _point() -> Any:
    from attnscope.commands.capacity.widths import Point

    return Point("margin", 77, 3, "float32", 0.1, 0.01, 0)


def _state(path: Path) -> Any:
    from attnscope.commands.timeline.run import _loss, step_of

    return _loss(path.parent, 10), step_of(path.parent)


def _about(path: Path) -> Any:
    from attnscope.cli.files import _is_about

    return _is_about(path.parent, "a model")


_INDEX = {"config.json": b'{"model_type": "llama"}', "model-00001-of-00001.safetensors": b"\x02" + bytes(7) + b"{}"}
_CONFIG = {"config.json": b'{"model_type": "llama"}'}

READERS = {
    reader.name: reader
    for reader in (
        Reader("survey.json", _survey, "json", {"other.json": b"survey.json"}),
        Reader("record.json", _record, "json"),
        Reader("record.json.gz", _record, "gz json"),
        Reader("a.shard", _shards, "shard", {"b.shard": b"a.shard"}),
        Reader("plan.json", _plan, "json"),
        Reader("run.json", _run, "json", {"looks.jsonl": b"{}\n"}),
        Reader("looks.jsonl", _run, "lines", {"run.json": b"run.json"}),
        Reader("run.lock", _lock),
        Reader("pattern.npy", _pattern, "npy"),
        Reader("pattern.npz", _pattern, "npz"),
        Reader("pattern.mtx", _pattern),
        Reader("pattern.json", _pattern, "json"),
        Reader("pattern.csv", _pattern),
        Reader("head.safetensors", _head, "safetensors"),
        Reader("corpus.txt", _corpus),
        Reader("corpus.jsonl", _corpus, "lines"),
        Reader("corpus.jsonl.gz", _corpus, "gz lines"),
        Reader("corpus.parquet", _corpus, "parquet"),
        Reader("stream.txt.gz", _stream, "gz bytes"),
        Reader("stream.jsonl", _stream, "lines"),
        Reader("stream.parquet", _stream, "parquet"),
        Reader("prompts.jsonl", _prompts, "lines"),
        Reader("labelled.jsonl.gz", _labelled, "gz lines"),
        Reader("picture", _medium),
        Reader("sound.wav", _medium),
        Reader("config.json", _config, "json"),
        Reader("model.safetensors", _weights, "safetensors", _CONFIG),
        Reader("model.safetensors.index.json", _weights, "json", _INDEX),
        Reader("model.gguf", _gguf),
        Reader("attnscope.json", _sidecar, "json"),
        Reader("device_map.json", _device_map, "json"),
        Reader("linear.safetensors", _linear_head, "safetensors"),
        Reader("kept.safetensors", _training, "safetensors", {"kept.json": b'{"plan": {"steps": 4}}'}),
        Reader("kept.json", _training, "json", {"kept.safetensors": b"kept.safetensors"}),
        Reader("part.json", _part, "json"),
        Reader("ledger.jsonl", _ledger, "lines"),
        Reader("width.json", _width, "json"),
        Reader("trainer_state.json", _state, "json"),
        Reader("collapse.json", _about, "json"),
    )
}


def prepare(folder: Path, reader: Reader, seeds: Path) -> Path:
    """Make the folder of a reader, with the files beside the one it reads, and return the path of that one.

    The name of a reader stands for its last seed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (reader.beside or {}).items():
        seed = seeds / content.decode(errors="replace") if content.decode("latin1") in READERS else None
        (folder / name).write_bytes(content if seed is None else max(seed.iterdir()).read_bytes())
    return folder / reader.name


@contextlib.contextmanager
def lowered_bounds() -> Iterator[None]:
    """Lower the bounds on unpacked sizes: a bomb must be refused, and refusing it at 1 GB takes seconds."""
    from unittest.mock import patch

    with (
        patch("attnscope.core.files.LARGEST", MOST_UNPACKED),
        patch("attnscope.data.formats.LARGEST", MOST_UNPACKED),
        patch("attnscope.data.medium.MOST_PIXELS", MOST_UNPACKED // 16),
    ):
        yield


def check(reader: Reader, path: Path, data: bytes) -> Any:
    """Read these bytes; return the value or the refusal. Raise `Broken` where the rule is broken."""
    from attnscope.core.errors import RefusalError

    path.write_bytes(data)
    began = time.process_time()
    value: Any
    try:
        with _watched(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = reader.read(path)
    except RefusalError as refusal:
        _check_sentence(refusal)
        value = refusal
    except (KeyboardInterrupt, Broken):
        raise
    except BaseException as error:
        raise Broken(f"{type(error).__name__} {_place(error)}") from error
    if time.process_time() - began > SECONDS:
        raise Broken(f"slow: {time.process_time() - began:.0f} seconds")
    return value


def _check_sentence(refusal: Any) -> None:
    sentence = refusal.sentence
    if not sentence.strip().endswith((".", "?", ")")) or len(sentence) > 2000 or "\n" in sentence:
        raise Broken(f"sentence {_place(refusal)}") from refusal


def _place(error: BaseException) -> str:
    """Return the innermost line of attnscope in a traceback, which tells findings apart."""
    place, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "/attnscope/" in name:
            place = f"{name.rpartition('/attnscope/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


_watching = threading.local()
_installed = False


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Raise `Broken` if anything is written or executed inside."""
    global _installed  # noqa: PLW0603  # an audit hook cannot be removed
    if not _installed:
        sys.addaudithook(_audit)
        _installed = True
    _watching.on = True
    try:
        yield
    finally:
        _watching.on = False


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not getattr(_watching, "on", False):
        return
    if event == "import":  # a module that is imported late may do all of this
        return
    if event == "open":
        path, mode, flags = args
        writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & _WRITING)
        if writes and path != os.devnull and not _importing():
            raise Broken(f"writes {path}")
    elif event in _FORBIDDEN and not _importing():
        raise Broken(f"does {event} {args!r:.80}")
    elif event == "exec" and isinstance(args[0], CodeType):
        name = args[0].co_filename
        if not name.startswith("<") and not _importing():  # cattrs and dataclasses run code that they call <...>
            raise Broken(f"executes {name}")


def _importing() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
