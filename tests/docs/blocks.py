"""Find the code blocks of documents, and run or check them.

The blocks of a page are run in order, in one empty folder and one Python process. `model` and `tokenizer` are a model
in memory. A block whose first line is `# needs: ...` needs something that is missing here (a cluster, a GPU, a file of
the reader's): its Python is only compiled, and its commands are only parsed. Running all commands takes minutes: `make
docs` runs them (`ATTNSCOPE_DOCS=all`), `make test` parses them.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from contextlib import chdir
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer

import attnscope
from attnscope.cli.main import app
from tests.command import attnscope as typed
from tests.docs.lists import ROOT

ALL = os.environ.get("ATTNSCOPE_DOCS") == "all"
FENCE = re.compile(r"^```(console|python)\n(.*?)^```$", re.M | re.S)
NEEDS = re.compile(r"# needs: (\S.*)\n")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str

    @property
    def needs(self) -> str | None:
        """Return what the block needs and is missing here, or None if it can be run."""
        found = NEEDS.match(self.text)
        return found[1] if found else None

    @property
    def commands(self) -> list[str]:
        return [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]

    def __str__(self) -> str:
        within = self.page.is_relative_to(ROOT)
        return f"{self.page.relative_to(ROOT) if within else self.page.name}:{self.line}"


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [Block(page, text[: found.start()].count("\n") + 2, found[1], found[2]) for found in FENCE.finditer(text)]


def check(block: Block) -> None:
    """Check that a block could run: Python compiles, and commands and options exist."""
    if block.language == "python":
        compile(block.text, str(block), "exec")
        return
    for line in block.commands:
        words = shlex.split(line, comments=True)
        if "attnscope" not in words:
            continue
        start = words.index("attnscope")  # skip launchers such as torchrun and srun
        _parse(words[start + 1 :], block)


def _parse(words: list[str], block: Block) -> None:
    words = words[: words.index(">")] if ">" in words else words
    group: Any = typer.main.get_command(app)
    assert words[0] in group.commands, f"{block}: there is no command {words[0]}"
    context = group.commands[words[0]].make_context(words[0], words[1:])
    assert context.args == [], f"{block}: {context.args} is left over"


def run_page(page: Path, folder: Path, *, commands: bool = True) -> None:
    """Run every runnable block in order; without `commands`, run only Python and parse the commands."""
    known: dict[str, Any] = {"attnscope": attnscope}
    with chdir(folder):
        for block in blocks(page):
            if block.needs:
                continue
            if block.language == "console" and not commands:
                check(block)
            elif block.language == "console":
                run_commands(block)
            else:
                _run_python(block, known)


def _run_python(block: Block, known: dict[str, Any]) -> None:
    names = {node.id for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Name)}
    if names & {"model", "tokenizer"}:
        for name, thing in zip(("model", "tokenizer"), _own_model(), strict=True):
            known.setdefault(name, thing)
    exec(compile(block.text, str(block), "exec"), known)


def run_commands(block: Block) -> None:
    assert block.commands, f"{block}: a console block has lines that begin with $"
    for line in block.commands:
        words = shlex.split(line, comments=True)
        assert words[0] == "attnscope", f"{block}: mark what cannot run here with `# needs: ...` on its first line"
        into = words[words.index(">") + 1] if ">" in words else None
        done = typed(*(words[1 : words.index(">")] if into else words[1:]))
        assert done.returncode == 0, f"{block}: {line}\n{done.stdout}{done.stderr}"
        if into:
            Path(into).write_text(done.stdout, "utf-8")


@cache
def _own_model() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(attnscope.__file__).parent / "data" / "pocket"
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
