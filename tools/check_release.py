"""Check the wheel and the sdist that `make dist` built: their contents, and installations outside the checkout.

python tools/check_release.py                 contents, and the three environments (minutes, mostly to install torch)
python tools/check_release.py --contents      only the contents of the wheel and the sdist
python tools/check_release.py --addresses     only whether [project.urls] holds real addresses

Environments are created with the running Python in a temporary folder, which is removed. --folder keeps them, and uses
those that it already holds:
  whole   the wheel with its extra `torch`: scan, report, doctor, and a watched training run
  small   the wheel alone: report, compare, merge and export what `whole` wrote; commands that need torch are refused
  source  the sdist alone: a report

Versions are those of constraints.txt; --newest uses the newest ones, except for torch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "attnscope"
PLACEHOLDER = "example.invalid"  # marks addresses in pyproject.toml that are not filled in
TORCH = "torch==2.13.0"
REFUSAL = "attnscope: This needs torch, which is not installed: pip install 'attnscope[torch]'.\n"
NEEDED = (
    *(
        "py.typed",
        "data/pocket/model.safetensors",
        "data/pocket/config.json",
        "data/pocket/tokenizer.json",
        "data/embedded.txt",
    ),
    *("commands/scan/survey/survey-1.schema.json", "reports/templates/shell.html", "papers/references.json"),
    *("measures/cards.json", "variants/cards.json", "papers/cards.json", "commands/capacity/known_widths.json"),
)
FORBIDDEN = ("tests/", "tools/", "bench/", ".weights", ".venv", "__pycache__")
# A short training run that writes a run folder.
TRAINING = """
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM
import attnscope

model = AutoModelForCausalLM.from_pretrained(Path(attnscope.__file__).parent / "data" / "pocket").train()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
with attnscope.watch(model, "run", every=2) as watch:
    for step in range(6):
        batch = torch.randint(model.config.vocab_size, (2, 16))
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        watch.step(loss=loss)
        optimizer.zero_grad()
"""


class UnfitError(Exception):
    """A problem of the release, in one sentence."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the folder in which its commands run."""

    folder: Path
    work: Path
    constraints: tuple[str, ...]

    def install(self, *what: str) -> None:
        self._run(self.folder / "bin" / "pip", "install", "-q", *self.constraints, *what)

    def python(self, program: str) -> str:
        return self._run(self.folder / "bin" / "python", "-c", program).stdout.strip()

    def attnscope(self, *words: str, writes: str | None = None, says: str = "") -> None:
        """Run a command that must succeed, write the file `writes` and print `says`."""
        done = self._run(self.folder / "bin" / PACKAGE, *words)
        if writes is not None and not (self.work / writes).is_file():
            raise UnfitError(f"`attnscope {' '.join(words)}` did not write {writes}.")
        if says not in " ".join(done.stdout.split()):
            raise UnfitError(f"`attnscope {' '.join(words)}` did not say '{says}':\n{done.stdout}")
        print(f"  attnscope {' '.join(words)}")

    def refuses(self, *words: str) -> None:
        done = self._run(self.folder / "bin" / PACKAGE, *words, check=False)
        if (done.returncode, done.stdout, done.stderr) != (2, "", REFUSAL):
            raise UnfitError(f"`attnscope {' '.join(words)}` was not refused in one sentence:\n{done.stderr}")
        print(f"  attnscope {' '.join(words)}: {done.stderr.strip()}")

    def _run(self, program: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PIP_CONSTRAINT")}
        environment = {**outside, "HF_HUB_OFFLINE": "1", "COLUMNS": "110", "XDG_CACHE_HOME": str(self.folder / "cache")}
        done = subprocess.run(
            [str(program), *words], cwd=self.work, env=environment, capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            raise UnfitError(f"`{program.name} {' '.join(words)}` left with {done.returncode}:\n{done.stderr}")
        return done


def check_contents(wheel: Path, sdist: Path) -> None:
    """Raise `UnfitError` if a required file is missing, or one is included that must not be."""
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
    _hold(wheel, inside, (f"{PACKAGE}/{name}" for name in NEEDED))
    strangers = {name.split("/")[0] for name in inside} - {PACKAGE, f"{wheel.stem.partition('-py3')[0]}.dist-info"}
    if strangers:
        raise UnfitError(f"{wheel.name} would install {', '.join(sorted(strangers))} beside {PACKAGE}.")
    with tarfile.open(sdist) as source:
        named = [name.partition("/")[2] for name in source.getnames()]
    needed = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "PKG-INFO")
    _hold(sdist, named, (*needed, *(f"src/{PACKAGE}/{name}" for name in NEEDED)))
    for file in (wheel, sdist):
        print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB, whole")


def _hold(file: Path, inside: Iterable[str], needed: Iterable[str]) -> None:
    names = set(inside)
    if missing := set(needed) - names:
        raise UnfitError(f"{file.name} lacks {', '.join(sorted(missing))}.")
    if found := {name for name in names if name.startswith(FORBIDDEN) or any(f"/{bad}" in name for bad in FORBIDDEN)}:
        raise UnfitError(f"{file.name} holds {', '.join(sorted(found)[:3])}, which users do not need.")


def check_whole(here: Environment, wheel: Path) -> None:
    here.install(TORCH)
    here.install(f"{wheel}[torch]")
    few = ("--samples", "4", "--max-tokens", "32", "--out")
    here.attnscope("scan", "pocket", *few, "trained", writes="trained/report.html")
    here.attnscope("scan", "pocket", "--random-init", *few, "random", writes="random/report.html")
    here.attnscope("report", "trained", "--out", "again.html", writes="again.html")
    here.attnscope("doctor", says="Everything that attnscope needs works here.")
    here.python(TRAINING)
    print("  a training run was watched")


def check_small(here: Environment, wheel: Path) -> None:
    here.install(str(wheel))
    brought = here.python("import importlib.util as u; print(u.find_spec('torch') or u.find_spec('transformers'))")
    if brought != "None":
        raise UnfitError("The wheel brings torch or transformers without its extra.")
    here.attnscope("--help")
    here.attnscope("--version", says=here.python("import attnscope; print(attnscope.__version__)"))
    here.attnscope("report", "trained", "--out", "small.html", writes="small.html")
    here.attnscope("compare", "trained", "random", "--out", "compare.html", writes="compare.html")
    here.attnscope("merge", "trained", "--out", "merged", writes="merged/survey.json")
    here.attnscope("export", "trained", "--out", "table.csv", writes="table.csv")
    here.attnscope("timeline", "run", writes="run/timeline.html")
    here.attnscope("cite", "entropy", says="@")
    here.attnscope("measures", "entropy", says="Attention entropy")
    here.attnscope("doctor", says="To run models: pip install 'attnscope[torch]'")
    for words in (("scan", "pocket"), ("view", "pocket", "a dog"), ("compile", "window", "-n", "8", "-k", "2")):
        here.refuses(*words)


def check_source(here: Environment, sdist: Path) -> None:
    here.install(str(sdist))
    here.attnscope("report", "trained", "--out", "source.html", writes="source.html")


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise UnfitError(f"{folder} must hold one {pattern}, and holds {len(found)}: run `make dist` again.")
    return found[0].resolve()


def check(dist: Path, *, contents_only: bool, newest: bool, folder: Path | None) -> None:
    wheel, sdist = _only(dist, "*.whl"), _only(dist, "*.tar.gz")
    check_contents(wheel, sdist)
    if contents_only:
        return
    constraints = () if newest else ("-c", str(ROOT / "constraints.txt"))
    with nullcontext(folder) if folder else tempfile.TemporaryDirectory(prefix="attnscope-release-") as environments:
        for step, file in ((check_whole, wheel), (check_small, wheel), (check_source, sdist)):
            name = step.__name__.removeprefix("check_")
            print(f"{name}: {file.name}, Python {sys.version.split()[0]}")
            here = Environment(Path(environments, name).resolve(), Path(environments, "work").resolve(), constraints)
            here.work.mkdir(parents=True, exist_ok=True)
            if not (here.folder / "bin" / "pip").exists():
                subprocess.run([sys.executable, "-m", "venv", here.folder], check=True)
            step(here, file)
            if not here.python("import attnscope; print(attnscope.__file__)").startswith(str(here.folder)):
                raise UnfitError("The imported attnscope is not the installed one.")
    print("fit to be released")


def check_addresses() -> None:
    """Refuse a release whose metadata would show placeholders as links."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"].get("urls", {})
    missing = [name for name, address in urls.items() if not address or PLACEHOLDER in address]
    if missing or not urls:
        raise UnfitError(
            f"fill in [project.urls] of pyproject.toml before a release: {', '.join(missing) or 'all of it'}"
        )


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("dist", nargs="?", type=Path, default=ROOT / "dist", help="the folder with both files")
    words.add_argument("--contents", action="store_true", help="install nothing")
    words.add_argument("--addresses", action="store_true", help="check [project.urls] alone")
    words.add_argument("--newest", action="store_true", help="without constraints.txt")
    words.add_argument("--folder", type=Path, help="where environments are made, and kept")
    options = words.parse_args()
    try:
        if options.addresses:
            check_addresses()
            return 0
        check(options.dist, contents_only=options.contents, newest=options.newest, folder=options.folder)
    except UnfitError as error:
        print(f"check_release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
