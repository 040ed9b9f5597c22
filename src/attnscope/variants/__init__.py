"""One file per published attention; every file here is found and registered by its name.

`attnscope.variants()` must return the catalog even after a file of this package was imported, when the name
`attnscope.variants` means the package. So the package itself can be called.
"""

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """Return every variant by name, or one of them.

    Parameters
    ----------
    name : str, optional
        The name of one variant.

    Returns
    -------
    dict of str to Variant, or Variant
        Each variant has a `card` with its formula, cost and citation.

    Raises
    ------
    RefusalError
        If no variant has this name.

    Examples
    --------
    >>> attnscope.variants("gated_output").card.citation
    'arXiv:2505.06708'
    """

    def __call__(self, name: str | None = None) -> Any:
        from attnscope.core.registry import variant_catalog

        return variant_catalog(name)


sys.modules[__name__].__class__ = _CallablePackage
