"""A page for every command, made from its parser: arguments, options with defaults, and two examples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from attnscope.cli.help import EXAMPLES, WHAT_IS_WRITTEN
from attnscope.cli.main import app
from tools.site.markdown import cell, code, contents, prose, table


def command_pages() -> Iterator[tuple[str, str]]:
    """Return the name and text of each page, the list of commands first."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    rows = [(f"[`attnscope {name}`]({name}.md)", prose(_said(one.help))) for name, one in commands.items()]
    yield (
        "commands/index",
        f"# Commands\n\n{prose(WHAT_IS_WRITTEN)}\n\nWhat each exit code means: "
        f"[exit codes](../../other_hands.md#exit-codes).\n\n{table(('command', 'what it does'), rows)}\n"
        f"{contents(commands, hidden=True)}",
    )
    for name, command in commands.items():
        yield f"commands/{name}", _page(name, command)


def _page(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(["attnscope", name, *command.collect_usage_pieces(context)])
    given = [one for one in command.get_params(context) if one.name != "help"]
    parts = [f"# attnscope {name}\n", f"{prose(_said(command.help))}\n", f"```text\n{usage}\n```\n"]
    parts += ["## Examples\n", "```text\n" + "\n".join(EXAMPLES[name]) + "\n```\n"]
    for kind in ("argument", "option"):
        rows = [_row(one, context) for one in given if one.param_type_name == kind]
        if rows:
            parts += [f"## {kind.title()}s\n", table((kind, "what it is", "default"), rows)]
    return "\n".join(parts)


def _said(help_text: str | None) -> str:
    return cell(help_text or "")


def _row(parameter: Any, context: Any) -> tuple[str, str, str]:
    """Return the row of an option: its help, and the bracket (`[default: 64; x>=1]`) in a separate column."""
    typed, said = parameter.get_help_record(context)
    words, _, bracket = said.rstrip("]").partition("  [")
    notes = [one for one in bracket.split("; ") if one]
    default = "".join(code(one.removeprefix("default: ")) for one in notes if one.startswith("default: "))
    more = "".join(f" ({one})" for one in notes if not one.startswith("default: "))
    return code(typed), prose(_said(words) + more), default
