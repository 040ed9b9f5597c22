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
from attnscope.report.record import Kind, Record, read_record

# kind -> where its class is, and what commands call its file
KINDS = MappingProxyType(
    {
        "survey": ("attnscope.commands.scan.survey.survey:Survey", "survey.json"),
        "comparison": ("attnscope.commands.compare.record:Comparison", "comparison.json"),
        "collapse": ("attnscope.commands.collapse.record:Collapse", "collapse.json"),
        "paths": ("attnscope.commands.paths.record:PathReport", "paths.json"),
        "task_paths": ("attnscope.commands.task_paths.record:TaskPaths", "task_paths.json"),
        "faithfulness": ("attnscope.commands.evaluate.record:Faithfulness", "faithfulness.json"),
        "explanation": ("attnscope.commands.explain.record:Explanation", "explanation.json"),
        "view": ("attnscope.commands.view.record:View", "view.json"),
        "operator_map": ("attnscope.commands.operator.record:OperatorMap", "operator_map.json"),
        "compiled": ("attnscope.commands.compile.record:Compiled", "head.safetensors"),
        "capacity": ("attnscope.commands.capacity.record:Capacity", "capacity.json"),
        "head_widths": ("attnscope.commands.head_widths.record:HeadWidths", "head_widths.json"),
        "treatment": ("attnscope.commands.treat.record:Treatment", "treatment.json"),
        "reproduction": ("attnscope.commands.reproduce.record:Reproduction", "results.json"),
        "timeline": ("attnscope.commands.timeline.record:Timeline", "timeline.json"),
    }
)
_HEADS = ".safetensors"


def load(path: Path | str, *, expected: type[Record] | None = None) -> Record:
    """The record in a file or a folder; with `expected`, one of another kind is refused."""
    file = file_of(named_path(path, "file"), expected)
    if file.suffix.lower() == _HEADS:
        kind = class_of("compiled")
        found: Record = kind.read(file)  # type: ignore[attr-defined]  # the one record that is not JSON
    else:
        data = read_document(file, _wanted(expected))
        name = str(data.get("format", "") if isinstance(data, dict) else "").removeprefix("attnscope-")
        if not isinstance(data, dict) or name not in KINDS:
            what = "record" if expected is None else f"{expected.KIND} file"
            raise RefusalError(f"{file} is not a {what}: give {_wanted(expected)}.")
        found = read_record(class_of(name), data, file)
    if expected is not None and not isinstance(found, expected):
        raise RefusalError(f"{file} is of the kind {found.KIND} and not a {expected.KIND}: give {_wanted(expected)}.")
    return found


def opened(thing: object, kind: type[Kind]) -> Kind:
    """A record as it is, or read from where a path says."""
    if isinstance(thing, kind):
        return thing
    if isinstance(thing, str | Path):
        return kind.load(thing)
    raise RefusalError(f"A {kind.KIND} or the path of one is needed, not {type(thing).__name__}.")


def class_of(kind: str) -> type[Record]:
    module, _, name = KINDS[kind][0].partition(":")
    found: type[Record] = getattr(import_module(module), name)
    return found


def file_of(path: Path, expected: type[Record] | None = None) -> Path:
    """The file itself; of a folder, the record in it that is expected, or the only one."""
    if not path.is_dir():
        return path
    if expected is not None:
        usual = path / KINDS[expected.KIND][1]
        packed = usual.with_name(f"{usual.name}.gz")
        return packed if packed.is_file() and not usual.exists() else usual
    there = files_of(path)
    if len(there) > 1:
        raise RefusalError(f"{path} holds {' and '.join(one.name for one in there)}: name the file itself.")
    return there[0]


def files_of(path: Path) -> tuple[Path, ...]:
    """The file itself; of a folder, all records in it, and one at least."""
    if not path.is_dir():
        return (path,)
    names = [name for _, name in KINDS.values()]
    there = tuple(path / name for name in (*names, *(f"{name}.gz" for name in names)) if (path / name).is_file())
    if not there:
        raise RefusalError(f"{path} holds no record: give a folder with {' or '.join(names)}.")
    return there


def _wanted(kind: type[Record] | None) -> str:
    if kind is not None:
        return f"the {kind.KIND} file that {kind.made_by()} wrote"
    return f"a file that attnscope wrote, such as {', '.join(name for _, name in KINDS.values())}"
