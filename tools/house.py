"""Measure the structure of the package: rooms, edges, files, lines, imports, forwarded parameters, walks of commands.

    python -m tools.house                 the table
    python -m tools.house --walk          also run scan, treat and explain on `pocket` and count the files they enter
    python -m tools.house --write         write both into docs/contributing/house.md

*Edges* are pairs of rooms of which one imports the other at run time. A *walk* is the sequence of files whose functions
a command enters for the first time; a *switch* is a step of that sequence into another room. Commands count as one room
for each of their folders.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "attnscope"
PAGE = ROOT / "docs" / "contributing" / "house.md"
MARKS = ("<!-- house: written by tools/house.py -->", "<!-- end of house -->")
FORWARDED = 6
COMMANDS = {
    "scan": ("scan", "pocket", "--samples", "8"),
    "treat": ("treat", "pocket", "--remedy", "gated_output", "--steps", "2", "--samples", "4"),
    "explain": ("explain", "pocket", "The dog chased its own tail and the dog"),
}
WALK = """
import json, os, sys
from pathlib import Path

source, names = sys.argv[1], []
seen = set()

def enter(frame, event, argument):
    name = frame.f_code.co_filename
    if event == "call" and name.startswith(source) and name not in seen and frame.f_code.co_name != "<module>":
        seen.add(name)
        names.append(str(Path(name).relative_to(source)))

from attnscope.cli.main import app
sys.setprofile(enter)
try:
    app(sys.argv[2:], standalone_mode=False)
except SystemExit:
    pass
sys.setprofile(None)
json.dump(names, sys.stderr)
"""


def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("attnscope", *path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def runtime_imports(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield imports anywhere in a module, except those under `if TYPE_CHECKING`."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        todo.extend(ast.iter_child_nodes(node))


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def edges() -> set[tuple[str, str]]:
    """Return the pairs of rooms of which the first imports the second."""
    found = set()
    for name, path in modules().items():
        for node in runtime_imports(ast.parse(path.read_text("utf-8"))):
            targets = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for target in targets:
                pair = (room(name), room(target))
                if target.startswith("attnscope.") and all(pair) and pair[0] != pair[1]:
                    found.add(pair)
    return {pair for pair in found if pair[0] != "__main__"}


def levels() -> list[list[str]]:
    """Return the layers that `lint-imports` checks, from top to bottom."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (ladder,) = (contract for contract in contracts if contract.get("containers") == ["attnscope"])
    return [step.split(" | ") for step in ladder["layers"]]


def import_lines(tree: ast.Module) -> int:
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def forwarding_calls(tree: ast.Module) -> list[int]:
    """Return how many parameters each call forwards unchanged, for calls that forward six or more."""
    counts = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        arguments = function.args
        own = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)} - {"self", "cls"}
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            positional = {a.id for a in call.args if isinstance(a, ast.Name)}
            keywords = {k.arg for k in call.keywords if isinstance(k.value, ast.Name) and k.value.id == k.arg}
            if len(passed := own & (positional | keywords)) >= FORWARDED:
                counts.append(len(passed))
    return counts


def walk(command: tuple[str, ...], folder: str) -> tuple[int, int]:
    """Return how many files a command enters, and how often the next new file lies in another room."""
    program = [sys.executable, "-c", WALK, str(SOURCE), *command, "--out", folder]
    done = subprocess.run(program, capture_output=True, text=True, check=True, cwd=folder)
    import json

    entered = [Path(name) for name in json.loads(done.stderr[done.stderr.rindex("[") :])]
    rooms = [path.parts[:2] if path.parts[0] == "commands" else path.parts[:1] for path in entered]
    return len(entered), sum(before != after for before, after in pairwise(rooms))


def table(walks: bool) -> list[tuple[str, str]]:
    """Return the measurements as (name, value) rows."""
    trees = [ast.parse(path.read_text("utf-8")) for path in modules().values()]
    lines = sum(path.read_text("utf-8").count("\n") for path in modules().values())
    imports = sum(map(import_lines, trees))
    forwarded = [count for tree in trees for count in forwarding_calls(tree)]
    ladder = levels()
    rows = [
        ("rooms, levels of the ladder, edges between rooms", f"{sum(map(len, ladder))}, {len(ladder)}, {len(edges())}"),
        ("files, lines, share of import lines", f"{len(trees)}, {lines:,}, {imports / lines:.1%}"),
        ("calls that forward six or more parameters", f"{len(forwarded)} ({sum(forwarded)} parameters)"),
    ]
    if walks:
        import tempfile

        for name, command in COMMANDS.items():
            with tempfile.TemporaryDirectory() as folder:
                files, switches = walk(command, folder)
            rows.append((f"walk of `{name}`: files entered, switches between rooms", f"{files}, {switches}"))
    return rows


def main(arguments: list[str]) -> None:
    rows = table(walks="--walk" in arguments or "--write" in arguments)
    if "--write" in arguments:
        page = PAGE.read_text("utf-8")
        before, rest = page.split(MARKS[0])
        drawn = "\n".join(f"| {name} | {value} |" for name, value in rows)
        filled = f"{MARKS[0]}\n\n| what | now |\n|---|---|\n{drawn}\n\n{MARKS[1]}"
        PAGE.write_text(before + filled + rest.split(MARKS[1])[1], "utf-8")
    for name, value in rows:
        print(f"{name:<64} {value}")


if __name__ == "__main__":
    main(sys.argv[1:])
