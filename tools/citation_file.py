"""Write CITATION.cff in the root of the repository from `attnscope cite`."""

from __future__ import annotations

from pathlib import Path

from attnscope.core.files import write_atomically
from attnscope.papers.references import citation_file

FILE = Path(__file__).resolve().parents[1] / "CITATION.cff"

if __name__ == "__main__":
    write_atomically(FILE, citation_file().encode())
