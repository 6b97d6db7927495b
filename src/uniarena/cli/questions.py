"""Questions about runs that exist: does one reproduce, how do two differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uniarena.cli.answer import DONE, FAILED, Answer
from uniarena.cli.commands import Json, Secrets, Trust, command

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
Either = Annotated[Path, typer.Argument(help="A run's folder, or one of its checkpoints.")]


@command("verify")
def verify(
    run: Run,
    secrets: Secrets = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Environment steps to repeat; by default up to 10,000.")
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> Answer:
    """Repeat the first steps of a run from its own folder and say whether it reproduces; exit code 1 if not."""
    from uniarena import run as runs

    verdict = runs.verify(run, steps, secrets=secrets or (), trust=trust)
    return Answer(verdict.to_json(), str(verdict), DONE if verdict.reproduces else FAILED)


@command("diff")
def diff(run_a: Either, run_b: Either, as_json: Json = False) -> Answer:
    """Show how two runs differ: configuration, code, versions, machine, changes made when resuming."""
    from uniarena import run as runs

    comparison = runs.diff(run_a, run_b)
    return Answer(comparison.to_json(), str(comparison))
