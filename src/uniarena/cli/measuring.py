"""What a run costs on this machine: which way of stepping environments is fastest, where time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from uniarena.cli.answer import Answer, BadInput
from uniarena.cli.commands import Json, command, hide, split

Seconds = Annotated[float, typer.Option(min=0.01, help="Seconds of each measurement.")]


@command("tune-sampling")
def tune_sampling(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="ENV|CONFIG",
            help="An environment's id, or config files and recipes, then key.path=value.",
        ),
    ],
    envs: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Numbers of environments; by default 1,8,64 and the config's."),
    ] = None,
    seconds: Seconds = 0.5,
    as_json: Json = False,
) -> Answer:
    """Measure the ways of stepping an environment, and say what to write into the config."""
    counts = None if envs is None else _counts(envs)
    subject: Any = what[0]
    learns = False
    if len(what) > 1 or _is_config(what[0]):
        from uniarena.config import has_learner, load

        files, overrides = split(what)
        hide(overrides)
        learns = has_learner(files, overrides)
        stand_in: list[Any] = [] if learns else [{"learner": {"type": "ppo"}}]  # which nothing is measured of
        subject = load(
            [*stand_in, *files], overrides
        )  # a bad one is answered before anything heavy is imported
        from uniarena import assembly

        assembly.check(subject)
    from uniarena import run as runs
    from uniarena.cli import tables

    found = runs.tune_sampling(subject, counts, seconds, updates=learns)
    return Answer(found.to_json(), tables.tuning(found))


def _is_config(word: str) -> bool:
    from uniarena.config import recipes

    return word in recipes() or Path(word).is_file() or Path(word).suffix in (".yaml", ".yml", ".json")


def _counts(text: str) -> list[int]:
    """`1,8,64` as numbers."""
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) for part in parts):
        raise BadInput(f"--envs {text}: expected numbers of environments, such as 1,8,64")
    return [int(part) for part in parts]


@command("profile")
def profile(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|CONFIG", help="A run's folder, or config files and recipes; then key.path=value."
        ),
    ],
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Env steps to watch, after a warm-up; by default 4 updates' worth, 2,000 at least."
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            help="Where profile.json and its picture go; by default the run's folder, or the current one."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="A file for the picture, such as docs/profile.png, instead.")
    ] = None,
    as_json: Json = False,
) -> Answer:
    """Train for a while as a config says, in a scratch folder, and say where the time goes."""
    from uniarena.config import load

    given = Path(what[0])
    if given.is_dir():
        from uniarena.checkpoint.find import meant

        given = meant(given)
    is_run = (given / "config.yaml").is_file()
    if is_run:
        files, overrides = [str(given / "config.yaml")], what[1:]
        if odd := [word for word in overrides if "=" not in word]:
            raise BadInput(f"{odd[0]}: after a run's folder come key.path=value")
    else:
        files, overrides = split(what)
    hide(overrides)
    experiment = load(files, overrides)  # a bad one is answered before anything heavy is imported
    from uniarena import assembly
    from uniarena import run as runs
    from uniarena.cli import tables
    from uniarena.run.origin import rooted

    assembly.check(experiment)
    if is_run:
        experiment = rooted(experiment, given)
    done = runs.profile(experiment, to or (given if is_run else Path()), steps, plot=plot)
    document = {**done.found.to_json(), "file": str(done.file), "picture": done.picture and str(done.picture)}
    return Answer(document, tables.profile(done))
