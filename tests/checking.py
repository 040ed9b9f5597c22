"""Shapes and types of attnscope, checked at run time in tests only, by an import hook that decorates every function.

jaxtyping's own hook does the same and costs more than what it watches: it checks every argument twice, binds every call
to a signature, and builds its checkers anew each time a function inside a function is defined. Here

    a function without shapes           is checked by beartype alone
    one with shapes                     by beartype inside jaxtyping's scope of dimension names, once
    one that is defined inside another  by checkers that are built once for its code, whatever it closes over
    a dataclass                         when it is made
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from functools import partial, wraps
from importlib.abc import MetaPathFinder
from types import CodeType
from typing import Any, get_args, get_type_hints
from unittest.mock import patch

from beartype import BeartypeConf, beartype
from beartype.door import die_if_unbearable
from jaxtyping import AbstractArray, jaxtyped

UNKNOWN = "__imported_for_type_checkers__"
VERSION = "checked2"  # of what is compiled: another number, and no cached file is taken for a new one
CONF = BeartypeConf(violation_type=TypeError)  # what Python itself says of a value of another type
_watched = beartype(conf=CONF)
_CHECKERS: dict[CodeType, tuple[Callable[..., Any], Any, bool]] = {}


def install(package: str) -> None:
    """From here on, modules of the package are imported with checks."""
    sys.meta_path.insert(0, _Finder(package))


def checked(fn: Any, nested: bool = False) -> Any:
    if isinstance(fn, classmethod | staticmethod):
        return type(fn)(checked(fn.__func__, nested))
    if inspect.isclass(fn):
        if "__dataclass_fields__" in vars(fn) and "__init__" in vars(fn):
            fn.__init__ = checked(fn.__init__)  # type: ignore[method-assign]
        return fn
    if not inspect.isfunction(fn) or not fn.__annotations__ or getattr(fn, "__no_type_check__", False):
        return fn
    _forget_what_is_not_imported(fn)
    if nested:
        return _checked_closure(fn)
    watched = _watched(fn)
    return jaxtyped(watched, typechecker=None) if _has_shapes(fn) else watched


def _forget_what_is_not_imported(fn: Any) -> None:
    """Names that are imported for type checkers alone mean nothing here."""
    unknown = fn.__globals__.get(UNKNOWN, ())
    for name, told in fn.__annotations__.items():
        if isinstance(told, str) and unknown and not unknown.isdisjoint(re.findall(r"\w+", told)):
            fn.__annotations__[name] = Any


def _has_shapes(fn: Any) -> bool:
    """Whether an annotation speaks of arrays: as it stands, or by a name for one."""
    known = fn.__globals__
    if any(_speaks_of_arrays(told) for told in fn.__annotations__.values()):
        return True
    words = {word for told in fn.__annotations__.values() for word in re.findall(r"\w+", str(told))}
    return any(word in known and _speaks_of_arrays(known[word]) for word in words)


def _speaks_of_arrays(hint: Any) -> bool:
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    if getattr(hint, "__module__", "").startswith("jaxtyping"):
        return True
    return any(_speaks_of_arrays(one) for one in get_args(hint))


def _checked_closure(fn: Any) -> Any:
    if fn.__code__ not in _CHECKERS:
        _CHECKERS[fn.__code__] = _checkers(fn)
    arguments, result, shapes = _CHECKERS[fn.__code__]

    @wraps(fn)
    def watched(*given: Any, **named: Any) -> Any:
        arguments(*given, **named)
        answer = fn(*given, **named)
        if result is not None:
            die_if_unbearable(answer, result, conf=CONF)
        return answer

    return jaxtyped(watched, typechecker=None) if shapes else watched


def _checkers(fn: Any) -> tuple[Callable[..., Any], Any, bool]:
    """What checks the arguments, and the hint of the result where it can be asked."""
    try:
        hints = get_type_hints(fn)
    except NameError:  # an annotation by a name of the function outside
        return (lambda *_, **__: None), None, False
    empty = inspect.Parameter.empty
    blank = [
        one.replace(annotation=empty, default=empty if one.default is empty else None)
        for one in inspect.signature(fn).parameters.values()
    ]
    space: dict[str, Any] = {}
    exec(f"def arguments{inspect.Signature(blank)}: pass", space)
    asked = space["arguments"]
    asked.__annotations__ = {name: hint for name, hint in hints.items() if name != "return"}
    asked.__defaults__, asked.__kwdefaults__ = fn.__defaults__, fn.__kwdefaults__
    yields = inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn)
    return _watched(asked), None if yields else hints.get("return"), _has_shapes(fn)


class _Transformer(ast.NodeTransformer):
    def __init__(self) -> None:
        self.depth = 0  # of functions around

    def visit_Module(self, node: ast.Module) -> ast.Module:
        guarded = [one for one in node.body if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"]
        imports = [one for block in guarded for one in block.body if isinstance(one, ast.Import | ast.ImportFrom)]
        names = {(alias.asname or alias.name).split(".")[0] for one in imports for alias in one.names}
        self.generic_visit(node)
        if names:
            told = ast.parse(f"{UNKNOWN} = frozenset({sorted(names)!r})").body[0]
            node.body.insert(node.body.index(guarded[0]), ast.fix_missing_locations(told))
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.decorator_list.insert(0, _decorator("checked", node))  # so that @dataclass is called first
        self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.decorator_list.append(_decorator("checked_inside" if self.depth else "checked", node))
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1
        return node


def _decorator(name: str, node: ast.AST) -> ast.expr:
    made = ast.parse(f"__import__('sys').modules[{__name__!r}].{name}", mode="eval").body
    for part in ast.walk(made):
        ast.copy_location(part, node)
    return made


checked_inside = partial(checked, nested=True)


class _Loader(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:  # type: ignore[override]
        tree = ast.parse(importlib.util.decode_source(data), path)
        return compile(_Transformer().visit(tree), path, "exec", dont_inherit=True, optimize=_optimize)

    def exec_module(self, module: Any) -> None:
        with patch("importlib._bootstrap_external.cache_from_source", _cached_beside):
            super().exec_module(module)


def _cached_beside(path: str, debug_override: Any = None) -> str:
    return importlib.util.cache_from_source(path, debug_override, optimization=VERSION)


class _Finder(MetaPathFinder):
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.package and not name.startswith(f"{self.package}."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
