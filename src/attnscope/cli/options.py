"""Options that several commands have in common, each said once."""

from __future__ import annotations

from typing import Annotated

import typer

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Accept pytorch_model.bin weights (tensors only).")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run model code that comes with the weights.")
]
RandomInit = Annotated[
    bool, typer.Option("--random-init", help="Use the configuration alone, with seeded random weights.")
]
