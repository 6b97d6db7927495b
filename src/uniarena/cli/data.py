"""`uniarena data`: look into files of experience, write them in another format, record a run's agent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from uniarena.cli.answer import Answer, BadInput
from uniarena.cli.commands import Json, Saved, Trust, app, command

group = typer.Typer(help="Data for learning offline: inspect, convert, record.", no_args_is_help=True)
app.add_typer(group, name="data")

File = Annotated[
    str,
    typer.Argument(metavar="FILE", help="A file, a folder of files, or the name of a local Minari dataset."),
]
Keys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="How it is read, such as format=d4rl, boundary=fixed_length, episode_length=1000, keys.terminated=dones.",
    ),
]
Env = Annotated[
    str | None,
    typer.Option("--env", metavar="ID", help="The environment, whose spaces the data is held against."),
]


@command("inspect", group)
def inspect(
    file: File,
    keys: Keys = None,
    env: Env = None,
    page: Annotated[
        Path | None, typer.Option("--page", "--html", metavar="PATH", help="Also write a page, .html or .md.")
    ] = None,
    as_json: Json = False,
) -> Answer:
    """Say what a dataset holds, what had to be left out of it and why, and what to beware of."""
    from uniarena.data import audit, report

    dataset, limit = _loaded(file, keys or (), env)
    found = audit.audit(dataset, limit)
    if page is not None:
        found["page"] = str(report.write(found, page))
    return Answer(found, report.text(found) + (f"\n\nwrote {page}" if page is not None else ""))


@command("convert", group)
def convert(
    file: File,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="What to write: a file, or a folder.")],
    keys: Keys = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="npz, d4rl, minari or rlds; by default what the name of TARGET says."),
    ] = None,
    env: Env = None,
    as_json: Json = False,
) -> Answer:
    """Write a dataset's transitions in another format."""
    from uniarena.data import convert as writing

    kind = form or writing.format_of(target)
    dataset, _ = _loaded(file, keys or (), env)
    written = writing.convert(dataset, target, kind)
    account = dataset.account
    document = {
        "written": str(target),
        "format": kind,
        "transitions": len(dataset),
        "dropped": sum(account.dropped.values()),
        "not_said": written.not_said,
        "warnings": [*account.notes, *written.warnings],
    }
    lines = [f"wrote {len(dataset):,} transitions to {target} ({kind})"]
    if document["dropped"]:
        lines.append(f"left out: {document['dropped']:,} steps; see: uniarena data inspect {file}")
    lines += [f"the format cannot say {what}" for what in written.not_said]
    lines += [f"warning: {warning}" for warning in document["warnings"]]
    return Answer(document, "\n".join(lines))


@command("record", group)
def record(
    run: Saved,
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes.")] = 100,
    epsilon: Annotated[
        float, typer.Option(min=0, max=1, help="Chance of a random action at each step.")
    ] = 0.0,
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Sample actions instead of taking the policy's mode.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The file, .npz; by default in the run's folder."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of environments and random actions.")] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> Answer:
    """Record a trained agent in its own environment."""
    from uniarena import run as runs

    path, recorder = runs.record_data(
        run,
        episodes,
        epsilon=epsilon,
        deterministic=not stochastic,
        out=out,
        seed=seed,
        trust=trust,
    )
    document = {"written": str(path), "episodes": recorder.episodes, "transitions": recorder.steps}
    said = f"wrote {recorder.steps:,} transitions of {recorder.episodes:,} episodes to {path}"
    return Answer(document, f"{said}\nnext:\n  uniarena data inspect {path}")


def _loaded(file: str, keys: Sequence[str], env: str | None) -> tuple[Any, int | None]:
    """The dataset, read in one walk, and the environment's time limit where that is known."""
    from uniarena.config import parse
    from uniarena.config.merging import merge
    from uniarena.config.read import read_override
    from uniarena.config.section import Section
    from uniarena.data import DataConfig, audit, load

    section = Section({"path": file})
    for text in keys:
        override = read_override(text)
        if "path" in override:
            raise BadInput(f"{text}: the data is the one named first, {file}; leave path out")
        section = merge(section, override)
    cfg = parse(DataConfig, section)
    observed, acted, limit = (None, None, None) if env is None else audit.env_facts(env)
    return load(cfg, observed, acted, lazy=True), limit
