"""One file per published attention; every file here is found and registered by its name.

`attnscope.variants()` must return the catalog even after a file of this package was imported, when the name
`attnscope.variants` means the package. So the package itself can be called.
"""

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, name: str | None = None) -> Any:
        from attnscope.core.registry import variant_catalog

        return variant_catalog(name)


sys.modules[__name__].__class__ = _CallablePackage
