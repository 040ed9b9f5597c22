"""`attnscope.doctor`: check versions, devices, extras and the cache, and run a verified scan of the embedded model.

    attnscope.doctor().well

Versions and extras are read from package metadata, without imports. The scan loads, taps and measures the model, and
compares the recomputed attention with the output of its modules. Without torch, which is an extra, the scan is reported
as missing, not as an error.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterator
from importlib import metadata

from attnscope.commands.doctor.record import Check, Checkup
from attnscope.core.amx_check import LIMIT, LIMITED_TO, half_precision_crashes
from attnscope.core.errors import BROUGHT, EXTRA, INSTALL, RefusalError, torch_is_installed
from attnscope.core.files import cache_folder, cache_size
from attnscope.core.words import numeral
from attnscope.engine.processes import cores

PACKAGE = "attnscope"
DEVELOPMENT = "dev"  # the extra for developers of attnscope
SAMPLES, TOKENS = 4, 48


def doctor() -> Checkup:
    """Check versions, devices, extras and the cache, and scan the embedded model.

    Returns
    -------
    Checkup
        All checks; `well` is True if none failed. A missing torch is reported and is not a failure.

    Examples
    --------
    >>> attnscope.doctor().well
    True
    """
    return Checkup((*versions(), *devices(), *extras(), cache(), embedded_model()))


def versions() -> Iterator[Check]:
    yield Check("versions", "attnscope", "well", metadata.version(PACKAGE))
    yield Check("versions", "Python", "well", f"{platform.python_version()} on {platform.system()}")
    for name, extra in _requirements():
        if extra is None:
            installed = _installed(name)
            advice = "" if installed else f"Install it: pip install {name}"
            yield Check("versions", name, "well" if installed else "ill", installed or "not installed", advice)


def devices() -> Iterator[Check]:
    if not torch_is_installed():
        yield Check("devices", "cpu", "well", f"{cores()} cores")
        return
    import torch

    limit = os.environ.get("OMP_NUM_THREADS")
    threads = f" (OMP_NUM_THREADS={limit})" if limit else ""
    yield Check("devices", "cpu", "well", f"{cores()} cores, torch uses {torch.get_num_threads()} threads{threads}")
    for number in range(torch.cuda.device_count()):
        yield Check("devices", f"cuda:{number}", "well", torch.cuda.get_device_name(number))
    if torch.backends.mps.is_available():
        yield Check("devices", "mps", "well", "there")
    if half_precision_crashes():
        yield Check(
            *("devices", "bfloat16 and float16", "ill", "products of narrow matrices crash the program here"),
            f"Set {LIMIT}={LIMITED_TO} in the environment, or use --dtype float32.",
        )


def extras() -> Iterator[Check]:
    """Yield a check of each extra: whether all its requirements are installed. torch is listed under its own extra
    only."""
    required: dict[str, list[str]] = {}
    for name, extra in _requirements():
        listed_elsewhere = extra != EXTRA and name in (PACKAGE, *BROUGHT)
        if extra is not None and extra != DEVELOPMENT and not listed_elsewhere:
            required.setdefault(extra, []).append(name)
    for extra, names in required.items():
        missing = [name for name in names if not _installed(name)]
        installed = ", ".join(f"{name} {_installed(name)}" for name in names if name not in missing)
        if missing:
            advice = f"pip install '{PACKAGE}[{extra}]'"
            yield Check("extras", extra, "missing", f"without {', '.join(missing)}", advice)
        else:
            yield Check("extras", extra, "well", installed)


def cache() -> Check:
    size = cache_size()
    found = f"{cache_folder()}, {size / 1e6:.1f} MB" if size else f"{cache_folder()}, empty"
    return Check("cache", "folder", "well", found, "attnscope doctor --clear-cache empties it" if size else "")


def embedded_model() -> Check:
    """Scan the embedded model, and return whether the scan was verified."""
    if not torch_is_installed():
        return Check("scan", "pocket", "missing", f"without {' and '.join(BROUGHT)}", INSTALL)
    from attnscope.commands.scan.run import scan

    begun = time.monotonic()
    try:
        survey = scan("pocket", samples=SAMPLES, max_tokens=TOKENS)
    except RefusalError as refusal:
        return Check("scan", "pocket", "ill", "refused", str(refusal))
    verified = survey.provenance.get("verify")
    if not isinstance(verified, dict) or not verified.get("passed"):
        return Check("scan", "pocket", "ill", "not verified", "Scans give wrong numbers here: please report this.")
    difference = numeral(float(verified["largest_difference"]), 1)
    result = f"verified, largest difference {difference}, {time.monotonic() - begun:.1f} s"
    return Check("scan", "pocket", "well", result)


def _requirements() -> Iterator[tuple[str, str | None]]:
    """Return every requirement of the installed package: its name, and the extra that needs it."""
    for line in metadata.requires(PACKAGE) or ():
        name = re.match(r"[A-Za-z0-9._-]+", line)
        extra = re.search(r"extra == ['\"]([^'\"]+)['\"]", line)
        if name is not None:
            yield name[0], extra[1] if extra else None


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
