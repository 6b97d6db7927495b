"""The command line: `uniarena train | eval | resume | export | list | check-env`.

Results go to stdout (one JSON object with `--json`), everything else to stderr. Exit codes: 0 done, 1 the run failed,
2 bad input, 3 nothing to do, 130 interrupted and saved. Heavy imports happen inside the commands.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

DONE, FAILED, BAD_INPUT, NOTHING_TO_DO, INTERRUPTED = 0, 1, 2, 3, 130

app = typer.Typer(
    help="UniArena: train, watch, evaluate, resume and export reinforcement-learning agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Let the checkpoint import the module:Class that it names.")
]


@app.command()
def train(
    config: Annotated[
        list[str], typer.Argument(help="YAML or JSON files or a recipe (ppo/cartpole), then key.path=value.")
    ],
    run_dir: Annotated[
        Path | None, typer.Option(help="The run's folder itself (default: a new one under runs/).")
    ] = None,
    seeds: Annotated[int, typer.Option(min=0, help="Train once per seed 0..N-1 and summarise.")] = 0,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the resolved configuration and stop.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train an agent from a config file or recipe."""
    files, overrides = _split(config)
    if print_config:
        from uniarena.config import dump, load

        exp = load(files, overrides)
        for notice in exp.notices:
            _say(notice)
        print(dump(exp), end="")
        return
    from uniarena import run

    if seeds:
        if run_dir is not None:
            _fail("--seeds makes a folder per seed; leave --run-dir out.", BAD_INPUT)
        report = run.train_seeds(files, overrides, seeds, quiet=quiet or as_json)
        print(json.dumps(report if as_json else report["summary"], indent=None if as_json else 2))
        return
    _finish(run.train(files, overrides, run_dir=run_dir, quiet=quiet or as_json), as_json)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="Run folder.")], as_json: Json = False, quiet: Quiet = False
) -> None:
    """Continue a run from its newest whole checkpoint, exactly."""
    from uniarena import run as runs

    _finish(runs.resume(run, quiet=quiet or as_json), as_json)


@app.command(name="eval")
def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder (its best checkpoint) or checkpoint folder.")],
    episodes: Annotated[int, typer.Option(min=1)] = 100,
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Sample actions instead of the policy's mode.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the evaluation environments.")] = None,
    video: Annotated[bool, typer.Option("--video", help="Record episodes into RUN/videos.")] = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Evaluate a trained agent in its own environment."""
    from uniarena import run as runs

    result = runs.evaluate(run, episodes, deterministic=not stochastic, seed=seed, video=video, trust=trust)
    print(json.dumps({"eval": result.to_json()}) if as_json else _describe(result))


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Run or checkpoint folder.")],
    onnx: Annotated[
        Path | None, typer.Option("--onnx", help="Target file (default: RUN/policy.onnx).")
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Write the acting policy as ONNX, normaliser and action scaling inside, and check it against Python."""
    from uniarena.agent import Agent

    target = Agent.load(run, trust=trust).export(onnx or run / "policy.onnx")
    print(json.dumps({"onnx": str(target)}) if as_json else f"wrote {target}")


@app.command(name="list")
def list_names(
    kind: Annotated[str | None, typer.Argument(help="learners, envs, wrappers, networks, recipes, …")] = None,
    as_json: Json = False,
) -> None:
    """What can be named in a config."""
    from uniarena import registry
    from uniarena.config import recipe_names

    tables = {
        f"{name}s" if name != "bonus" else "bonuses": sorted(registry.names(name)) for name in registry.KINDS
    }
    tables["recipes"] = recipe_names()
    if kind is not None:
        key = next(
            (name for name in tables if kind in (name, name.removesuffix("es"), name.removesuffix("s"))), None
        )
        if key is None:
            _fail(f"there is no list {kind!r}; there are {', '.join(tables)}.", BAD_INPUT)
        tables = {key: tables[key]}
    if as_json:
        print(json.dumps(tables))
        return
    for name, entries in tables.items():
        print(f"{name}: {', '.join(entries) or '(none)'}")


@app.command(name="check-env")
def check_env(
    env: Annotated[str, typer.Argument(help="Gymnasium id or module:Class.")], as_json: Json = False
) -> None:
    """Check an environment and say what to mend."""
    from uniarena.envs import checker

    problems = checker.check_env(env)
    if as_json:
        print(json.dumps({"env": env, "problems": [problem.to_json() for problem in problems]}))
    else:
        print(checker.report(env, problems))
    if any(problem.is_error for problem in problems):
        raise typer.Exit(FAILED)


def main() -> NoReturn:
    """Entry point: known errors become one screen and an exit code, never a traceback."""
    from uniarena.config.errors import ConfigError

    if "" not in sys.path:
        sys.path.insert(0, "")  # module:Class of the current folder
    try:
        app(standalone_mode=False)
        code = DONE
    except ConfigError as error:
        _say(str(error))
        code = BAD_INPUT
    except typer.Exit as stop:
        code = stop.exit_code
    except KeyboardInterrupt:
        _say("stopped at once; the last checkpoint is whole.")
        code = INTERRUPTED
    except Exception as error:
        code = _known(error)
    sys.exit(code)


def _known(error: Exception) -> int:
    """The exit code of an error that has a name here; everything else shows its traceback and fails."""
    if hasattr(error, "show") and hasattr(error, "exit_code"):  # a usage error of the option parser
        error.show()
        return BAD_INPUT
    kinds = {
        "NothingToDo": NOTHING_TO_DO,
        "CheckpointError": BAD_INPUT,
        "EnvError": BAD_INPUT,
        "NonFiniteError": FAILED,
    }
    name = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in kinds), None)
    if name is None:
        import traceback

        traceback.print_exc()
        return FAILED
    _say(str(error))
    return kinds[name]


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Files and recipe names, and `key.path=value` overrides."""
    overrides = [a for a in arguments if "=" in a and not Path(a).exists()]
    files = [a for a in arguments if a not in overrides]
    if not files:
        _fail(
            "give a config file or a recipe before the overrides, e.g. uniarena train ppo/cartpole", BAD_INPUT
        )
    return files, overrides


def _finish(result: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.to_json()))
    else:
        print(
            f"{result.env_steps:,} env steps in {result.wall_s:.1f} s (set-up {result.setup_s:.1f} s); "
            f"stopped: {result.stop_reason}"
        )
        if result.eval is not None:
            print(_describe(result.eval))
        print(f"run folder: {result.run}")
        print(f"next: uniarena eval {result.run}   |   tensorboard --logdir {result.run}")
        if result.stop_reason == "interrupted":
            print(f"      uniarena resume {result.run}")
    if result.stop_reason == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _describe(result: Any) -> str:
    return (
        f"evaluation ({result.mode}, {result.episodes} episodes): return {result.return_mean:.2f} "
        f"± {result.return_std:.2f}, "
        f"interquartile mean {result.return_iqm:.2f}, length {result.length_mean:.1f}"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _fail(text: str, code: int) -> NoReturn:
    _say(text)
    raise typer.Exit(code)
