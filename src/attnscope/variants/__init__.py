"""One file per published form of attention, registered by its file name.

Importing any file of this package binds `attnscope.variants` to the package, which hides the function of that name. So
the package itself can be called, and returns the same catalog.
"""

import sys
from types import ModuleType
from typing import Any

from attnscope.core.registry import variant_catalog


class _CallablePackage(ModuleType):
    __doc__ = variant_catalog.__doc__

    def __call__(self, name: str | None = None) -> Any:
        return variant_catalog(name)


sys.modules[__name__].__class__ = _CallablePackage
