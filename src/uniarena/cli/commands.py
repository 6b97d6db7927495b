"""The commands. Each returns an `Answer`; `invoke` prints it."""

from __future__ import annotations

import contextlib
import functools
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import uniarena
from uniarena.cli.answer import (
    BAD_INPUT,
    DONE,
    FAILED,
    INTERRUPTED,
    Answer,
    BadInput,
    failed,
    failure,
    stdout_kept,
)

app = typer.Typer(
    help="UniArena: train, watch, evaluate, resume and export reinforcement-learning agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"uniarena {uniarena.__version__}")
        raise typer.Exit


@app.callback()
def uniarena_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """UniArena: train, watch, evaluate, resume and export reinforcement-learning agents."""


Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors on stderr.")]
Trust = Annotated[bool, typer.Option("--trust", help="Let the checkpoint import the module:Class it names.")]
Saved = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run's folder (its best checkpoint), or a checkpoint's.")
]
Secrets = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY.PATH=VALUE", help="Secrets, which the saved config does not hold."),
]
Config = Annotated[
    list[str],
    typer.Argument(
        metavar="CONFIG",
        help="YAML or JSON files, or recipes such as ppo/cartpole, merged left to right; then key.path=value.",
    ),
]


def command(name: str, group: typer.Typer = app) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Register a command. What it raises becomes an `Answer` here, before the option parser can change it."""

    def register(function: Callable[..., Answer]) -> Callable[..., Answer]:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Answer:
            try:
                return function(*args, **kwargs)
            except (Exception, KeyboardInterrupt) as error:
                return failure(error)

        group.command(name=name)(guarded)
        return function

    return register


@command("train")
def train(
    config: Config,
    run_dir: Annotated[
        Path | None, typer.Option(help="The run's folder itself; by default a new one under runs/.")
    ] = None,
    resume_if_exists: Annotated[
        bool,
        typer.Option(
            "--resume-if-exists", help="Go on with the run in --run-dir; begin where there is none."
        ),
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Train N times, with seeds from experiment.seed on, and summarise."),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the resolved configuration and stop.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> Answer:
    """Train an agent."""
    from uniarena.config import load

    files, overrides = split(config)
    hide(overrides)
    experiment = load(files, overrides)  # a bad one is answered before anything heavy is imported
    if print_config:
        return _resolved(experiment)
    from uniarena import run as runs

    where: dict[str, Any] = {"run_dir": run_dir, "resume_if_exists": resume_if_exists, "quiet": quiet}
    if seeds is None:
        return _trained(runs.train(experiment, **where))
    return _trained_seeds(runs.train_seeds(experiment, seeds=seeds, **where))


@command("resume")
def resume(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run's folder; with --as also one of its checkpoints.")
    ],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY.PATH=VALUE", help="What is to change from here on; and secrets."),
    ] = None,
    as_new: Annotated[
        Path | None, typer.Option("--as", metavar="NEW", help="Go on in this new folder; RUN stays as it is.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> Answer:
    """Continue a run from its newest whole checkpoint, as if it had never stopped, or with changes."""
    from uniarena import run as runs

    hide(changes or ())
    if runs.is_of_seeds(run):
        if as_new is not None:
            raise BadInput(f"{run} holds the runs of several seeds; --as takes one of them")
        return _trained_seeds(runs.resume_seeds(run, changes or (), quiet=quiet))
    return _trained(runs.resume(run, changes or (), as_new=as_new, quiet=quiet))


@command("export")
def export(
    run: Saved,
    target: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Where to write; by default policy.onnx in the run's folder."),
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="As ONNX, the one format of this version.")] = True,
    trust: Trust = False,
    as_json: Json = False,
) -> Answer:
    """Write the acting policy, normaliser and action scaling inside, and check it against Python."""
    from uniarena import run as runs

    file = runs.export(run, target, trust=trust)
    return Answer({"onnx": str(file)}, f"wrote {file}")


@command("list")
def list_names(
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", help="learners, envs, wrappers, networks, recipes, …")
    ] = None,
    as_json: Json = False,
) -> Answer:
    """Show what a config can name."""
    from uniarena.cli import listing

    if kind is None and as_json:
        return Answer({name: listing.entries(name) for name in listing.TABLES}, "")
    if kind is None:
        return Answer({}, listing.overview())
    name = listing.table(kind)
    if name is None:
        raise BadInput(listing.nearest(kind))
    text = "" if as_json else listing.text(name)  # which imports what it describes; names alone need not
    return Answer({name: listing.entries(name)}, text)


@command("doctor")
def doctor(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, finished or going on.")],
    as_json: Json = False,
) -> Answer:
    """Say what ails a run, with evidence, likely causes, and what to change."""
    from uniarena import run as runs
    from uniarena.analysis.doctor import report

    findings, rows = runs.doctor(run)
    found, said = [finding.to_json() for finding in findings], runs.said(run)
    document = {"run": str(run), "rows": rows, "findings": found, "said": said}
    return Answer(document, report(findings, rows, said))


@command("plot")
def plot(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    target: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="Where to write; by default plots in the run's folder."),
    ] = None,
    dims: Annotated[
        str | None, typer.Option(metavar="I,J", help="Two observation entries for the map of the policy.")
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> Answer:
    """Draw curves, policy, predicted against realised returns, and gradients by layer, as PNG and for TensorBoard."""
    from uniarena import run as runs

    files = runs.plot(run, target, dims=_pair(dims), trust=trust)
    return Answer({"plots": [str(file) for file in files]}, "\n".join(f"wrote {file}" for file in files))


def _pair(text: str | None) -> tuple[int, int] | None:
    """`0,2` as two numbers."""
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdigit() for part in parts):
        raise BadInput(f"--dims {text}: expected two entries of the observation, such as 0,2")
    return int(parts[0]), int(parts[1])


@command("check-config")
def check_config(config: Config, as_json: Json = False) -> Answer:
    """Give hints on a configuration before it is trained; docs/tuning.md explains them."""
    from uniarena.config import load, to_mapping

    files, overrides = split(config)
    hide(overrides)
    experiment = load(files, overrides)  # a bad one is answered before anything heavy is imported
    from uniarena import assembly
    from uniarena.analysis.doctor.hints import hints

    assembly.check(experiment)
    found = [hint for part in experiment.parts for hint in hints(to_mapping(part))]
    several = "s" if len(found) > 1 else ""
    lines = [*map(str, found), f"{len(found)} hint{several}" if found else "no hints: nothing unusual"]
    return Answer({"hints": [hint.to_json() for hint in found]}, "\n".join(lines))


@command("check-env")
def check_env(
    env: Annotated[str, typer.Argument(metavar="ENV", help="An environment's id, or module:Class.")],
    as_json: Json = False,
) -> Answer:
    """Check an environment and say what to mend."""
    from uniarena.envs import checker, ids

    ids.resolve(env)  # an id that nobody knows is bad input, not a fault of an environment
    problems = checker.check_env(env)
    code = FAILED if any(problem.is_error for problem in problems) else DONE
    document = {"env": env, "problems": [problem.to_json() for problem in problems]}
    return Answer(document, checker.report(env, problems), code)


def main() -> NoReturn:
    """Entry point of the console script and of `python -m uniarena`."""
    if "" not in sys.path:
        sys.path.insert(0, "")  # module:Class of the current folder
    code = invoke(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said: one more Ctrl-C must not change the exit code
    sys.exit(code)


def invoke(arguments: Sequence[str]) -> int:
    """Run one command and print its answer → exit code."""
    as_json = "--json" in arguments
    with stdout_kept() if as_json and "--help" not in arguments else contextlib.nullcontext():
        answer = _call(arguments)
    if answer is None:
        return DONE
    answer.show(as_json)
    return answer.code


def _call(arguments: Sequence[str]) -> Answer | None:
    """The command's answer; None where the option parser gave one itself (`--help`).

    Where it stopped for a reason of its own, such as Ctrl-C while it read the options, it returns an exit code.
    """
    try:
        answer = app(list(arguments), prog_name="uniarena", standalone_mode=False)
    except Exception as error:
        if not (hasattr(error, "show") and hasattr(error, "exit_code")):
            raise
        error.show()  # a usage error, on stderr
        return failed("UsageError", str(error), BAD_INPUT)
    if isinstance(answer, int) and answer:
        return failed("Exit", "stopped before the command began", answer)
    return answer if isinstance(answer, Answer) else None


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Files and recipe names, and `key.path=value` overrides."""
    overrides = [a for a in arguments if "=" in a and not Path(a).exists()]
    files = [a for a in arguments if a not in overrides]
    from uniarena.config.schema import SECTIONS

    for name in files:
        if re.fullmatch(r"[a-z_]+(\.\w+)+", name) and name.partition(".")[0] in SECTIONS:
            raise BadInput(f"{name} is a key without a value; write {name}=VALUE")
    if not files:
        raise BadInput(
            "name a config file or a recipe before the values, such as: uniarena train ppo/cartpole"
        )
    return files, overrides


def _resolved(experiment: Any) -> Answer:
    """The configuration in canonical names with every key and default, its components checked."""
    from uniarena import assembly
    from uniarena.config.dump import dump_mapping
    from uniarena.run.whole import filled

    assembly.check(experiment)
    for notice in experiment.notices:
        print(f"warning: {notice}", file=sys.stderr)
    tree = filled(experiment)
    return Answer(tree, dump_mapping(tree).rstrip("\n"))


def _trained(result: Any) -> Answer:
    lines = [
        f"{result.stop_reason}: {result.length} in {result.wall_s:.1f} s of training, "
        f"set-up {result.setup_s:.1f} s",
        *([] if result.eval is None else [f"evaluation, {result.eval}"]),
        *(
            [f"not begun yet: {left}"]
            if (left := ", ".join(f"stage {s}" for s in result.stages_left))
            else []
        ),
        f"run folder: {result.run}",
        "next:",
        *(f"  {line}" for line in result.next_commands()),
    ]
    code = INTERRUPTED if result.stop_reason == "interrupted" else DONE
    return Answer(result.to_json(), "\n".join(lines), code)


def _trained_seeds(report: Any) -> Answer:
    code = FAILED if report.failures else INTERRUPTED if report.interrupted else DONE
    return Answer(report.to_json(), str(report), code)


def hide(overrides: Sequence[str]) -> None:
    """Values of keys that name secrets are not repeated in messages."""
    from uniarena import provenance

    pairs = [text.partition("=") for text in overrides]
    provenance.hide(value for key, _, value in pairs if provenance.names_secret(key))
