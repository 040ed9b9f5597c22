"""Documents, pages, terminal screens, notebook views, charts and their theme. Does not import torch."""
