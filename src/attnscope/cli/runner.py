"""What every command with a record does around its twin: folder, progress, Ctrl-C, files and output.

with running(output, folder, "the view") as run:
    found = view(model, text, progress=run.progress)
    run.keep(found, "view.json", "view.html", about=(text,))
run.tell(found)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnscope.cli.output import output_folder, page_path, print_json, say
from attnscope.cli.progress import showing
from attnscope.core.errors import RefusalError
from attnscope.core.locks import FolderLock
from attnscope.core.names import named_for
from attnscope.core.progress import Listener, silent, uninterrupted

if TYPE_CHECKING:
    from attnscope.reports.record import Record

INTERRUPTED = 130
Printed = dict[str, Any]


@dataclass(frozen=True)
class Output:
    """Where a command writes, and how it prints."""

    out: Path | None = None
    save: Path | None = None  # a copy of the record
    chart: Path | None = None
    verbose: bool = False
    as_json: bool = False

    def __post_init__(self) -> None:
        from attnscope.cli.files import checked_file

        if self.chart is not None:
            checked_file(self.chart, "--chart", (".html", ".json", ".png", ".svg"))
        if self.save is not None:
            checked_file(self.save, "--save", (".json",))


@contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, say what was kept and exit."""
    try:
        yield
    except KeyboardInterrupt:  # the progress bar is closed by now
        say(f"{kept()}.")
        raise typer.Exit(INTERRUPTED) from None


@dataclass
class Run:
    """One run of a command."""

    output: Output
    stack: ExitStack
    folder: Path = Path()
    progress: Listener = silent
    files: dict[str, Path | None] = field(default_factory=dict)
    replaced: bool = False  # a page of this name was there before

    def enter(self, folder: Path) -> Path:
        """Create the output folder. Remove it at the end if it is still empty."""
        self.folder = self.stack.enter_context(output_folder(folder))
        return self.folder

    def keep(
        self,
        record: Record,
        data: str,
        page: str,
        label: str = "Record",
        about: tuple[str | Path | None, ...] = (),
        **options: Any,
    ) -> None:
        """Save the record before drawing its page: if drawing fails, the page can be made from the record.

        `about` holds the text and target of the run. A slug of them becomes part of both names, so that a run on
        another text does not replace this one.
        """
        if about:
            data, page = named_for(data, *about), named_for(page, *about)
        self.replaced = (self.folder / page).exists()
        with uninterrupted():
            saved = record.save(self.folder / data)
            self.files = {"Page": None, label: saved}
        self.progress("drawing the page", 0, 0)
        self.files["Page"] = record.write_page(self.folder / page, **options)

    def tell(
        self,
        record: Record,
        *,
        printed: Callable[[dict[str, str | None]], Printed] | None = None,
        chart: Mapping[str, Any] | None = None,
        **shown: Any,
    ) -> None:
        """Save the copy and the chart, then print the record and the paths of its files.

        `printed` makes the JSON from the names of the files, `chart` are options of the chart, and `shown` of the
        screen. If the chart is refused, the record is printed first.
        """
        output, refusal = self.output, None
        if output.save is not None:
            self.files["Copy"] = record.save(output.save)
        self.files["Chart"] = output.chart
        if output.chart is not None:
            from attnscope.reports.export import save

            try:
                save(record.chart(**(chart or {})), output.chart)
            except RefusalError as error:
                self.files["Chart"], refusal = None, error
        if output.as_json:
            names = {label.lower(): None if path is None else str(path) for label, path in self.files.items()}
            print_json((printed or _standard(record))(names))
        else:
            from attnscope.reports.terminal import print_record

            told = {
                f"{label} (replaced)" if label == "Page" and self.replaced else label: path
                for label, path in self.files.items()
            }
            print_record(record, files=told, verbose=output.verbose, **shown)
        if refusal is not None:
            raise refusal


def tell_only(record: Record, output: Output) -> None:
    """Print the record of a command that writes nothing unless asked: a copy with --save, the page with --out."""
    if output.save is not None:
        record.save(output.save)
    if output.out is not None:
        record.write_page(page_path(output.out))
    if output.as_json:
        print_json(record.to_json())
    else:
        from attnscope.reports.terminal import print_record

        print_record(record, files={"Report": output.out, "Record": output.save}, verbose=output.verbose)


def _standard(record: Record) -> Callable[[dict[str, str | None]], Printed]:
    def printed(names: dict[str, str | None]) -> Printed:
        names["data"] = names.pop("record", None)
        return {**record.to_json(), "sentences": list(record.sentences()), "files": names}

    return printed


@contextmanager
def running(
    output: Output,
    folder: Path | None = None,
    doing: str = "it",
    *,
    counted: str = "",
    kept: Callable[[], str] | None = None,
    lock: str | None = None,
) -> Iterator[Run]:
    """Open the output folder and show progress; after Ctrl-C say what was kept, and exit with code 130.

    `doing` names what was not done when a run was interrupted early, `counted` what progress counts. `kept` makes the
    sentence after Ctrl-C where a command keeps more than its record. `lock` names a lock file: a second command that
    would write the same files is refused.
    """
    run = Run(output, ExitStack())

    def written() -> str:
        saved = [path for label, path in run.files.items() if label != "Page" and path is not None]
        if not saved:
            return f"interrupted before {doing} was done; nothing is written"
        return f"interrupted; {saved[0]} is written, the page is not"

    with interruptible(kept or written), run.stack:
        if folder is not None:
            run.enter(folder)
            if lock is not None:
                run.stack.callback(FolderLock(folder, lock).release)
        run.progress = run.stack.enter_context(showing(counted))
        run.progress("loading", 0, 0)  # shown while torch and transformers are imported, which takes seconds
        yield run
