"""What an agent earns: in its environment, or estimated from data."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from uniarena.cli.answer import Answer, BadInput
from uniarena.cli.commands import Json, Saved, Secrets, Trust, command, hide

METHODS = ("all", "fqe", "wis")


@dataclass(frozen=True)
class Elsewhere:
    """Options that say where an agent is evaluated, if not in its own environment; and `--json`."""

    env: Annotated[
        str | None, typer.Option(metavar="ID", help="Play in this environment instead of the run's own.")
    ] = None
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Play nothing, and estimate from this data.")
    ] = None
    method: Annotated[
        str | None,
        typer.Option(
            help="With --data: fqe (fitted-Q evaluation), wis (weighted importance sampling) or all (default)."
        ),
    ] = None
    as_json: Json = False


def with_elsewhere(function: Callable[..., Answer]) -> Callable[..., Answer]:
    """A command with the fields of `Elsewhere` as further options; it takes them as one argument, `elsewhere`."""
    hints = typing.get_type_hints(function, include_extras=True)
    options = typing.get_type_hints(Elsewhere, include_extras=True)
    own = [p for name, p in inspect.signature(function).parameters.items() if name != "elsewhere"]
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(f.name, kind, default=f.default) for f in dataclasses.fields(Elsewhere)]

    @functools.wraps(function)
    def packed(**given: Any) -> Answer:
        elsewhere = Elsewhere(**{name: given.pop(name) for name in options})
        return function(elsewhere=elsewhere, **given)

    packed.__annotations__ = {**{p.name: hints[p.name] for p in own}, **options}
    packed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(annotation=packed.__annotations__[p.name], kind=kind) for p in (*own, *more)]
    )
    return packed


@command("eval")
@with_elsewhere
def evaluate(
    run: Saved,
    elsewhere: Elsewhere,
    secrets: Secrets = None,
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes.")] = 100,
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Sample actions instead of taking the policy's mode.")
    ] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the evaluation environments.")] = None,
    video: Annotated[
        bool, typer.Option("--video", help="Also record up to three episodes into RUN/videos.")
    ] = False,
    trust: Trust = False,
) -> Answer:
    """Evaluate a trained agent in its own environment, or without one, on data."""
    from uniarena import run as runs

    hide(secrets or ())
    env, data, method = elsewhere.env, elsewhere.data, elsewhere.method
    if method is not None and data is None:
        raise BadInput("--method needs --data: it says how a return is estimated from data")
    if method not in (None, *METHODS):
        raise BadInput(f"--method {method}: expected one of {', '.join(METHODS)}")
    if data is not None:
        if video or env is not None:
            raise BadInput("--data estimates without an environment; leave --video and --env out")
        methods = METHODS[1:] if method in (None, "all") else (method,)
        found = runs.evaluate_on_data(
            run, data, methods, deterministic=not stochastic, seed=seed or 0, trust=trust
        )
        return Answer({"on_data": found.to_json()}, str(found))
    mode: dict[str, Any] = {
        "deterministic": not stochastic,
        "seed": seed,
        "trust": trust,
        "secrets": secrets or (),
    }
    result = runs.evaluate(run, episodes, env=env, **mode)
    document: dict[str, Any] = {"eval": runs.figures(result)}
    lines = [f"evaluation, {result}"]
    if video:
        files = runs.record(run, min(episodes, runs.VIDEOS), **mode)
        document["videos"] = [str(file) for file in files]
        lines += [f"video: {file}" for file in files]
    return Answer(document, "\n".join(lines))
