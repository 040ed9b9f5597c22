"""One place through which every path on the command line passes, before a command sees it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from typer.core import TyperArgument, TyperCommand

from attnscope.cli.help import write_examples
from attnscope.core.errors import RefusalError
from attnscope.core.named_path import named_path


class PathCheckingCommand(TyperCommand):
    """A command whose paths are such: not empty, without zero bytes, short enough, in folders that may be searched.
    Its help ends with examples."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        write_examples(str(self.name), formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = list(args)
        rest: list[str] = super().parse_args(ctx, args)
        for parameter in self.params:
            value = ctx.params.get(str(parameter.name))
            several = isinstance(value, list | tuple) and all(isinstance(one, Path) for one in value)
            if not isinstance(value, Path) and not several:
                continue
            argument = isinstance(parameter, TyperArgument)
            name = str(parameter.name).upper() if argument else max(parameter.opts, key=len)
            for one in value if several else (value,):
                if one == Path() and _was_empty(typed, None if argument else name):  # typer takes it for this folder
                    raise RefusalError(f"What is given for {name} is empty, and not a file name: give it one.")
            checked = [named_path(one, f"path of {name}") for one in (value if several else (value,))]
            ctx.params[str(parameter.name)] = checked if several else checked[0]
        return rest


def _was_empty(typed: list[str], option: str | None) -> bool:
    if option is None:
        return "" in typed
    return f"{option}=" in typed or any(pair == (option, "") for pair in pairwise(typed))
