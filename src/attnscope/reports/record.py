"""The methods that all records share: save, load, table, chart, sentences, page and notebook view.

    record.save("collapse.json"); attnscope.load("collapse.json")
    record.table(); record.chart(); record.sentences(); attnscope.report(record, "collapse.html")

A record is a frozen dataclass. Its file holds its fields: `{"format": "attnscope-KIND", "version": 1, ...fields,
"sha256": hash of everything before}`. Its words and charts are in the folder of its command, and are imported when they
are first needed:

    words.py       document(record): the content of a page, a terminal and a notebook; verdict(record)
    chart.py       chart(record): the main chart of the record

A folder may define functions that replace the default display of the document: `sentences` in words.py, `show`
(terminal) and `html` (notebook) in terminal.py or words.py, `render` in page.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from attnscope.core.decoding import FieldError, decode, encode
from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path, read_document, write_atomically
from attnscope.core.hashes import hashed, refuse_damaged
from attnscope.core.names import files_named

if TYPE_CHECKING:
    import pandas

    from attnscope.reports.document import Document
    from attnscope.reports.words import Verdict

Kind = TypeVar("Kind", bound="Record")
Step = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Converts the document of one version to the next version."""
BESIDE = (
    "format",
    "version",
    "sentences",
    "files",
    "chart",
)  # keys of files and `--json` that are not fields


HEADS = ".safetensors"  # compiled heads are the only record that is not JSON


class Record:
    """Base class. Subclasses are frozen dataclasses that set KIND and COMMAND and define their table and repr."""

    KIND: ClassVar[str]
    COMMAND: ClassVar[str]  # the command that makes it, named in refusals
    FILE: ClassVar[str]  # default file name
    FOLDER: ClassVar[str] = ""  # package with its words and page; if empty, the package of the class
    VERSION: ClassVar[int] = 1
    STEPS: ClassVar[Mapping[int, Step]] = MappingProxyType({})  # upgrades from each earlier version to the next
    INDENT: ClassVar[int | None] = 1  # None writes a single line, for documents with thousands of numbers

    @classmethod
    def made_by(cls) -> str:
        """Return the command that makes such a record, for refusals."""
        return f"`attnscope {cls.COMMAND}`"

    def to_json(self) -> dict[str, Any]:
        """Return the dictionary that `--json` prints."""
        fields: dict[str, Any] = encode(self)
        return {"format": f"attnscope-{self.KIND}", "version": self.VERSION, **fields}

    def document(self) -> dict[str, Any]:
        """Return the dictionary that `save` writes: `to_json`, plus whatever is needed to read it back."""
        return self.to_json()

    @classmethod
    def from_json(cls: type[Kind], data: Mapping[str, Any]) -> Kind:
        """Return the record that `to_json` wrote. If a field is wrong, raise a `FieldError` that names it."""
        read: Kind = decode(cls, {name: value for name, value in data.items() if name not in BESIDE})
        return read

    def save(self, path: Path | str) -> Path:
        """Write one JSON document atomically. A name ending in .gz compresses it, a name ending in .html writes the
        page.
        """
        path = named_path(path)
        if path.suffix.lower() == ".html":
            return self.write_page(path)
        separators = (",", ":") if self.INDENT is None else None
        text = json.dumps(
            hashed(self.document()), indent=self.INDENT, separators=separators, allow_nan=False, ensure_ascii=False
        )
        # Replace characters that are not UTF-8 by question marks: an error here could lose hours of work.
        write_atomically(path, text.encode("utf-8", errors="replace"))
        return path

    @classmethod
    def load(cls: type[Kind], path: Path | str) -> Kind:
        """Read the file that `save` wrote; `path` is the file or its folder. Refuse another kind of record."""
        file = cls.file_in(named_path(path, "file"))
        wanted = f"the {cls.KIND} file that {cls.made_by()} wrote"
        data = {"format": "attnscope-compiled"} if file.suffix.lower() == HEADS else read_document(file, wanted)
        kind = kind_of(data)
        if not kind:
            raise RefusalError(f"{file} is not a {cls.KIND} file: give {wanted}.")
        if kind != cls.KIND:
            raise RefusalError(f"{file} is of kind {kind:.40}, not {cls.KIND}: give {wanted}.")
        return read_record(cls, data, file)

    @classmethod
    def file_in(cls, path: Path) -> Path:
        """If `path` is a folder, return the file of this kind in it; otherwise return `path`.

        Refuse a folder with files of several texts and none of the usual name.
        """
        if not path.is_dir():
            return path
        usual = path / cls.FILE
        files = [*files_named(path, usual.name), *files_named(path, f"{usual.name}.gz")]
        if len(files) > 1 and files[0] != usual:
            raise RefusalError(f"{path} holds {' and '.join(file.name for file in files)}: name the file itself.")
        return files[0] if files else usual

    def table(self) -> pandas.DataFrame:
        """Return the numbers as a tidy data frame."""
        raise NotImplementedError

    def sentences(self) -> tuple[str, ...]:
        """Return the conclusions in plain words."""
        said: tuple[str, ...] = ask(self, "sentences")
        return said

    def chart(self, *args: Any, theme: str | None = "light", **options: Any) -> Any:
        """Return the main chart as an Altair chart. The command's `chart` function defines the options.

        Altair joins charts (`one | other`) only if neither has a theme: make both with `theme=None`.
        """
        return self._dressed(ask(self, "chart", *args, **options), theme)

    def write_page(self, path: Path | str, **options: Any) -> Path:
        """Write the self-contained HTML page of this record."""
        path = named_path(path)
        page: str = ask(self, "render", **options)
        write_atomically(path, page.encode("utf-8", errors="replace"), make_folder=True)
        return path

    def page_name(self, file: Path) -> str:
        """Return the name of the page beside a record's `file`."""
        return f"{Path(file.name.removesuffix('.gz')).stem}.html"

    def _repr_html_(self) -> str:
        """Return the notebook view. All text is escaped."""
        shown: str = import_module("attnscope.reports.notebook").html(self)
        return shown

    @staticmethod
    def _dressed(chart: Any, theme: str | None) -> Any:
        return chart if theme is None else import_module("attnscope.reports.theme").dressed(chart, theme)


_MODULES = MappingProxyType(
    {
        "document": ("words",),
        "sentences": ("words",),
        "verdict": ("words",),
        "show": ("terminal", "words"),
        "html": ("terminal", "words"),
        "chart": ("chart", "page"),
        "render": ("page",),
    }
)


def ask(record: Record, name: str, *args: Any, **options: Any) -> Any:
    """Call the function `name` in the folder of a record, or derive its result from the record's document.

    Return None if the folder has neither.
    """
    if function := _function(record, name):
        return function(record, *args, **options)
    if name == "document" or not _function(record, "document"):
        return None
    verbose = options.pop("verbose", False)
    content: Document = ask(record, "document", **options)
    if name == "render":
        return import_module("attnscope.reports.page").document_page(content, record.COMMAND)
    if name == "show":
        return import_module("attnscope.reports.terminal").document_screen(content, verbose=verbose)
    if name == "html":
        return import_module("attnscope.reports.notebook").document_html(content)
    return {"sentences": content.sentences, "verdict": content.verdict}.get(name)


def _function(record: Record, name: str) -> Callable[..., Any] | None:
    folder = record.FOLDER or type(record).__module__.rpartition(".")[0]
    modules = [f"{folder}.{module}" for module in _MODULES[name]]
    functions = (getattr(import_module(module), name, None) for module in modules if find_spec(module) is not None)
    return next(filter(None, functions), None)


def verdict(record: Record) -> Verdict:
    """Return the verdict of a record."""
    concluded: Verdict = ask(record, "verdict")
    return concluded


def kind_of(data: Any) -> str:
    """Return the kind that a document names, or "" if it names none."""
    form = str(data.get("format", "") if isinstance(data, dict) else "")
    return form.removeprefix("attnscope-") if form.startswith("attnscope-") else ""


def read_record(kind: type[Kind], data: Mapping[str, Any], path: Path) -> Kind:
    """Return the record in a document of its kind, or refuse and say what is wrong."""
    if isinstance(data.get("version"), int) and data["version"] in (kind.VERSION, *kind.STEPS):
        data = refuse_damaged(data, path, f"run {kind.made_by()} again")
    try:
        while isinstance(version := data.get("version"), int) and version < kind.VERSION and version in kind.STEPS:
            data = {**kind.STEPS[version](data), "version": version + 1}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise RefusalError(f"{path} is damaged ({error!s:.200}): run {kind.made_by()} again.") from error
    if data.get("version") != kind.VERSION:
        raise RefusalError(
            f"{path} is a {kind.KIND} of version {data.get('version')!s:.40} but this attnscope reads version "
            f"{kind.VERSION}: run {kind.made_by()} again, or use the attnscope that wrote it."
        )
    try:
        return kind.from_json(data)
    except FieldError as error:
        raise RefusalError(f"{path} is damaged ({error!s:.200}): run {kind.made_by()} again.") from error
