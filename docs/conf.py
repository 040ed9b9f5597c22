"""How Sphinx draws the site. `python -m tools.site` puts the pages together, and `make docs` runs both.

Nothing is loaded from another host: no fonts, no scripts, no search service; the site can be read from a disk.
"""

from __future__ import annotations

import attnscope

project = "attnscope"
author = "the attnscope authors"
release = version = attnscope.__version__
project_copyright = author

extensions = ["myst_nb"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
root_doc = "index"
exclude_patterns = ["**/gate.yml"]

# Strict: `make docs` makes an error of every warning. Headings are anchors down to the fourth level, named as GitHub
# names them, so that a link into a page is the same in the repository and on the site, and is checked in both.
nitpicky = True
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "colon_fence"]

# Notebooks have no outputs in the repository: they are run here, each time.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "remove"  # progress bars
smartquotes = False  # two dashes are the beginning of an option

html_theme = "pydata_sphinx_theme"
html_title = "attnscope"
html_static_path = ["style"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_last_updated_fmt = None
html_use_index = True
html_sidebars = {"index": [], "docs/gallery/index": []}
html_theme_options = {
    "show_prev_next": True,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_toc_level": 2,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
