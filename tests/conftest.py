"""What every test runs under: one thread, no display, hypothesis that repeats, extras by marker."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

# Before torch is imported: it reads them once. Two workers on two cores gain nothing from more threads.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile(
    "ci", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Which modules tell that an extra of pyproject.toml is installed.
EXTRAS = {
    "video": ("moviepy", "pygame"),
    "box2d": ("Box2D", "pygame"),
    "mujoco": ("mujoco",),
    "atari": ("ale_py", "cv2"),
    "minatar": ("minatar",),
    "minigrid": ("minigrid",),
    "envpool": ("envpool",),
    "dm-control": ("dm_control", "shimmy"),
    "pettingzoo": ("pettingzoo", "mpe2"),
    "ray": ("ray",),
    "optuna": ("optuna",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "plot": ("matplotlib",),
    "minari": ("minari", "h5py"),
    "offline": ("h5py", "crc32c", "array_record"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "tensordict": ("tensordict",),
    "jax": ("jax",),
    "gymnax": ("jax", "gymnax"),
    "metaworld": ("metaworld",),
    "legacy-gym": ("gym",),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("uniarena")
    group.addoption(
        "--only", action="append", default=[], metavar="EXTRA", help="only tests that need this extra"
    )
    group.addoption(
        "--without", action="append", default=[], metavar="EXTRA", help="no test that needs this extra"
    )
    group.addoption("--fail-on-skip", action="store_true", help="a skipped test is a failure")


def extras_of(item: pytest.Item) -> set[str]:
    """The extras that a test's `extra` markers name."""
    names = {name for mark in item.iter_markers("extra") for name in mark.args}
    if unknown := names - EXTRAS.keys():
        raise pytest.UsageError(
            f"{item.nodeid}: no such extra: {sorted(unknown)}; there are {sorted(EXTRAS)}"
        )
    return names


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    only, without = set(config.getoption("--only")), set(config.getoption("--without"))
    kept, dropped = [], []
    for item in items:
        names = extras_of(item)
        (dropped if names & without or (only and not names & only) else kept).append(item)
        missing = sorted(n for n in names if any(find_spec(module) is None for module in EXTRAS[n]))
        if missing:
            item.add_marker(pytest.mark.skip(reason=f"needs uniarena[{','.join(missing)}]"))
    items[:] = kept
    if dropped:
        config.hook.pytest_deselected(items=dropped)


def fail_if_skipped(config: pytest.Config, report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure where --fail-on-skip says so; an expected failure stays what it is."""
    if report.skipped and config.getoption("--fail-on-skip") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"skipped, which counts as a failure here: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    fail_if_skipped(item.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    fail_if_skipped(collector.config, report)
    return report


@pytest.fixture
def tmp_run(tmp_path: Path) -> Path:
    """A run folder that does not exist yet, for `--run-dir` and `experiment.run_dir`."""
    return tmp_path / "run"
