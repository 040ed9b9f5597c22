"""What a command writes into a page stands between two marks; around them the page belongs to its author."""

from __future__ import annotations


def marks(name: str, writer: str) -> tuple[str, str]:
    return f"<!-- {name}: written by {writer} -->", f"<!-- end of {name} -->"


def put_between_marks(page: str, name: str, writer: str, text: str) -> str:
    """The page with `text` where its marks are. A page that lost one is refused: all behind it would be lost too."""
    begin, end = marks(name, writer)
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise SystemExit(f"The page has lost its marks: put '{begin}' and '{end}' around the {name}.")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"
