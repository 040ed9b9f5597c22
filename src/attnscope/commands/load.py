"""load(path) -> Record: whatever a command wrote, read back as what it was.

    attnscope.load("out/survey.json"), attnscope.load("out")       a survey, a collapse, paths, ...
    attnscope.load("head.safetensors")                             a compiled head

The kind stands in the file (`"format": "attnscope-collapse"`), never in its name. A folder is read where it holds one
record.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path, read_document
from attnscope.reports.record import HEADS, Kind, Record, kind_of, read_record

# kind -> where its class is
KINDS = MappingProxyType(
    {
        "survey": "attnscope.commands.scan.survey.survey:Survey",
        "comparison": "attnscope.commands.compare.record:Comparison",
        "collapse": "attnscope.commands.collapse.record:Collapse",
        "paths": "attnscope.commands.paths.record:PathReport",
        "task_paths": "attnscope.commands.task_paths.record:TaskPaths",
        "faithfulness": "attnscope.commands.evaluate.record:Faithfulness",
        "explanation": "attnscope.commands.explain.record:Explanation",
        "view": "attnscope.commands.view.record:View",
        "operator_map": "attnscope.commands.operator.record:OperatorMap",
        "compiled": "attnscope.commands.compile.record:Compiled",
        "capacity": "attnscope.commands.capacity.record:Capacity",
        "head_widths": "attnscope.commands.head_widths.record:HeadWidths",
        "treatment": "attnscope.commands.treat.record:Treatment",
        "reproduction": "attnscope.commands.reproduce.record:Reproduction",
        "timeline": "attnscope.commands.timeline.record:Timeline",
    }
)


def load(path: Path | str) -> Record:
    """Return the record in a file, or the only record in a folder."""
    file = file_of(named_path(path, "file"))
    if file.suffix.lower() == HEADS:
        return class_of("compiled").load(file)
    data = read_document(file, _wanted())
    kind = kind_of(data)
    if kind not in KINDS:
        raise RefusalError(f"{file} is not a record: give {_wanted()}.")
    return read_record(class_of(kind), data, file)


def opened(thing: object, kind: type[Kind]) -> Kind:
    """Return a record as it is, or read it where a path says."""
    if isinstance(thing, kind):
        return thing
    if isinstance(thing, str | Path):
        return kind.load(thing)
    raise RefusalError(f"A {kind.KIND} or the path of one is needed, not {type(thing).__name__}.")


def class_of(kind: str) -> type[Record]:
    module, _, name = KINDS[kind].partition(":")
    found: type[Record] = getattr(import_module(module), name)
    return found


def file_of(path: Path) -> Path:
    """Return the file itself, or the only record in a folder."""
    there = files_of(path)
    if len(there) > 1:
        raise RefusalError(f"{path} holds {' and '.join(file.name for file in there)}: name the file itself.")
    return there[0]


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the file itself, or all records in a folder; refuse a folder without any."""
    if not path.is_dir():
        return (path,)
    names = _file_names()
    there = tuple(path / name for name in (*names, *(f"{name}.gz" for name in names)) if (path / name).is_file())
    if not there:
        raise RefusalError(f"{path} holds no record: give a folder with {' or '.join(names)}.")
    return there


def _file_names() -> list[str]:
    return [class_of(kind).FILE for kind in KINDS]


def _wanted() -> str:
    return f"a file that attnscope wrote, such as {', '.join(_file_names())}"
