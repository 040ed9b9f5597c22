"""Documents, pages, terminal screens, notebook views, charts and their theme. Nothing here imports torch."""
