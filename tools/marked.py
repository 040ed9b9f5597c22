"""Replace the text between two marks of a page. The rest of the page is written by hand."""

from __future__ import annotations


def marks(name: str, writer: str) -> tuple[str, str]:
    return f"<!-- {name}: written by {writer} -->", f"<!-- end of {name} -->"


def put_between_marks(page: str, name: str, writer: str, text: str) -> str:
    """Return the page with `text` between its marks. Refuse a page that lacks a mark: the text after it would be
    lost."""
    begin, end = marks(name, writer)
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise SystemExit(f"The page has lost its marks: put '{begin}' and '{end}' around the {name}.")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"
