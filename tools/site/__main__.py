"""python -m tools.site [FOLDER]    build the documentation site, strictly, into FOLDER (build/site)

Every warning is an error: a broken link, an anchor that is not there, a page outside the navigation, a notebook that
does not run. Pages are those of docs/ and README.md; the reference and the gallery are made here, from the code.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from tools.site.assemble import ROOT, assemble
from tools.site.gallery import draw, gallery_page
from tools.site.navigation import add_navigation
from tools.site.reference import write_reference
from tools.site.rooms import rooms_page


def main(folder: Path) -> int:
    source = folder / "source"
    docs = source / "docs"
    assemble(source)
    write_reference(docs / "reference")
    (docs / "contributing" / "rooms.md").write_text(rooms_page(), "utf-8")
    draw(docs / "gallery")
    (docs / "gallery" / "index.md").write_text(gallery_page(docs), "utf-8")
    add_navigation(source)
    strict = ["-W", "--keep-going", "-n"]
    code = sphinx(["-c", str(ROOT / "docs"), *strict, "-q", "-E", str(source), str(folder / "html")])
    if code == 0:
        print(f"The site is in {folder / 'html' / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site").resolve()))
