"""Where a run came from: its folder, git commit and dirty diff, command, packages, hardware, seed, and its
log.

What is recorded serves to repeat a run elsewhere, so it names no user and no host, and secrets are blanked
out. A machine without git, or a folder that is no repository, is recorded as such; it never fails a run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import re
import secrets
import shlex
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from uniarena.config import ConfigError
from uniarena.config.dump import is_secret

__all__ = [
    "create_run_folder",
    "discard_if_empty",
    "hide",
    "names_secret",
    "read_record",
    "redact",
    "replace_text",
    "setup_logging",
    "unwritable",
    "write_provenance",
]

BLANK = "<redacted>"
LOG, RECORD = "run.log", "provenance.json"
LOCK = "run.lock"  # `checkpoint.lock` has the same name: to import it from there would cost that of torch
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONHASHSEED", "MUJOCO_GL")
_SOURCES = frozenset((".py", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini", ".sh"))
_MAX_SOURCE, _MAX_DIFF = 100_000, 5_000_000  # bytes
_SHORTEST = 8  # characters of a secret that is looked for in text; shorter ones are too common to tell

_NAME = (
    r"(?:[\w.-]*[_.-])?(?:(?:api|access|secret|private|auth|license)_?key|token|secrets?|password|passwd|passphrase"
    r"|credentials?)"
)
_QUOTED = re.compile(rf"(?i)(\b{_NAME}[\"']?\s*[:=]\s*[\"'])([^\"']+)")
_BARE = re.compile(rf"(?i)((?<![\w.-])-*{_NAME}[\"']?\s*[:=]\s*)([^\s\"'#,}}][^\s,}}]*)")
_SECRET_NAME = re.compile(rf"(?i)-*{_NAME}")
_SHAPES = re.compile(
    r"\b(?:gh[a-z]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_\w{20,}|sk-[\w-]{16,}|AKIA[0-9A-Z]{16}"
    r"|xox[a-z]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)"
)
_USERINFO = re.compile(r"(://)[^/\s@]+@")


# -- the folder ------------------------------------------------------------------------------------------
def create_run_folder(base: Path | str, name: str, seed: int, run_dir: Path | str | None = None) -> Path:
    """Make the folder of a new run: `<base>/<name>-s<seed>-<date>-<time>-<random>`, or `run_dir` itself.

    Two runs never get the same folder, also when started in the same second by different processes.

    Raises:
        ConfigError: `run_dir` holds something already, or a folder cannot be made there.
    """
    try:
        if run_dir is not None:
            return _own_folder(Path(run_dir))
        while True:
            now = datetime.now().strftime("%Y%m%d-%H%M%S")
            folder = Path(base) / f"{_safe(name)}-s{seed}-{now}-{secrets.token_hex(3)}"
            folder.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                return folder
    except OSError as error:
        raise unwritable(error) from error


def unwritable(error: OSError) -> ConfigError:
    """What is told where a run's folder cannot be made."""
    hint = "choose a place that you may write to (--run-dir PATH)"
    return ConfigError(f"the run's folder cannot be made: {error}", path="experiment.run_dir", hint=hint)


def _own_folder(folder: Path) -> Path:
    if folder.is_dir() and any(folder.iterdir()):
        how = f"continue the run in it with `uniarena resume {shlex.quote(str(folder))}`"
        if (folder / "config.yaml").exists() and not any((folder / "checkpoints").glob("*/manifest.json")):
            how = "the run in it ended before its first checkpoint: begin it again with --resume-if-exists"
        said = f"{folder} is not empty; a run needs a folder of its own"
        raise ConfigError(said, path="experiment.run_dir", hint=f"{how}, or name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _safe(name: str) -> str:
    """Letters and digits of any script, `_`, `.` and `-`; at most 60 characters; never hidden."""
    text = re.sub(r"[^\w.-]+", "-", unicodedata.normalize("NFC", name))
    return text[:60].strip(".-") or "run"


def discard_if_empty(folder: Path) -> None:
    """Remove the folder of a run that never began, that is when it holds nothing but its log and its lock."""
    if {path.name for path in folder.iterdir()} <= {LOG, LOCK}:
        for name in (LOG, LOCK):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


# -- the record ------------------------------------------------------------------------------------------
def write_provenance(
    folder: Path, *, seed: int, command: Sequence[str] | None = None, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Write `provenance.json`, and `git.diff` where the working tree differs from its commit.

    A resumed run adds an entry to `resumed` (and `git-<n>.diff`) and leaves the first record as it is.

    Args:
        command: the command line; None: that of this process.
        more: further plain data about this start, such as the checkpoint that it continues from.

    Returns:
        what was recorded about this start.
    """
    path = folder / RECORD
    earlier = read_record(folder) or None
    starts = 0 if earlier is None else 1 + len(earlier["resumed"])
    git, diff = _git_state(folder)
    if diff:
        git["diff"] = f"git-{starts}.diff" if starts else "git.diff"
        (folder / git["diff"]).write_text(diff, encoding="utf-8", errors="surrogateescape")
    record: dict[str, Any] = {
        "run": folder.name,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(_redact_arguments(sys.argv if command is None else command)),
        "seed": seed,
        "git": git,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hardware": _hardware(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "packages": _packages(),
        **(more or {}),
    }
    content = {**record, "resumed": []} if earlier is None else earlier
    if earlier is not None:
        earlier["resumed"].append(record)
    replace_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return record


def read_record(folder: Path) -> dict[str, Any]:
    """What `write_provenance` wrote; empty where there is nothing readable."""
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {"resumed": [], **found} if isinstance(found, dict) else {}


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old one or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def _packages() -> dict[str, str]:
    found = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # a half-removed package has none
            found[name] = distribution.version
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _hardware() -> dict[str, Any]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found: dict[str, Any] = {"cpu": _cpu_name(), "cores": os.cpu_count(), "usable_cores": usable, "gpus": []}
    with contextlib.suppress(ImportError, OSError):
        import psutil

        found["memory_gib"] = round(psutil.virtual_memory().total / 2**30, 1)
    torch = sys.modules.get("torch")
    with contextlib.suppress(AttributeError, RuntimeError):  # torch may be absent, or its driver unwell
        if torch is not None and torch.cuda.is_available():
            found["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return found


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# -- git --------------------------------------------------------------------------------------------------
def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints, or None where it fails or is not there."""
    command = ["git", "-C", str(folder), *arguments]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, env=environment, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "surrogateescape")


def _git_state(run: Path) -> tuple[dict[str, Any], str]:
    """Commit, branch, remote, whether the tree is dirty; and the diff that leads from the commit to the tree."""
    try:
        root = _git(folder := Path.cwd(), "rev-parse", "--show-toplevel")
    except OSError:
        return {"commit": None, "why": "the working directory is gone"}, ""
    if root is None:
        why = "not a git repository" if _git(folder, "--version") else "git is not installed"
        return {"commit": None, "why": why}, ""
    top = Path(root.rstrip("\n"))
    commit = (_git(top, "rev-parse", "--verify", "--quiet", "HEAD") or "").strip() or None
    diff = _git(top, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD") if commit else ""
    listed = (_git(top, "ls-files", "--others", "--exclude-standard", "-z") or "").split("\0")
    untracked = [name for name in listed if name and not _of_runs((top / name).resolve(), run.resolve(), top)]
    text = "".join([diff or "", *(_new_file(top, name) for name in untracked)])
    cut = len(text) > _MAX_DIFF
    state = {
        "commit": commit,
        "branch": (_git(top, "symbolic-ref", "--short", "--quiet", "HEAD") or "").strip() or None,
        "remote": redact((_git(top, "config", "--get", "remote.origin.url") or "").strip()) or None,
        "dirty": bool(diff or untracked),
        "untracked": untracked[:200],
        "diff_complete": not cut,
    }
    return state, _redact_diff(text[:_MAX_DIFF])


def _of_runs(path: Path, run: Path, top: Path) -> bool:
    """Whether a file belongs to this run, to one beside it or to another one inside the repository."""
    beside = run.parent
    if path.is_relative_to(run) or (path.is_relative_to(beside) and not top.resolve().is_relative_to(beside)):
        return True
    return any((folder / RECORD).is_file() for folder in path.parents if folder.is_relative_to(top.resolve()))


def _new_file(top: Path, name: str) -> str:
    """An untracked source file as a diff that `git apply` takes; nothing for data, large files and links."""
    path = top / name
    try:
        if path.suffix not in _SOURCES or path.is_symlink() or path.stat().st_size > _MAX_SOURCE:
            return ""
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, ValueError):
        return ""
    if not lines or '"' in name or "\\" in name or "\n" in name:
        return ""
    body = "".join("+" + line for line in lines)
    end = "" if body.endswith("\n") else "\n\\ No newline at end of file\n"
    head = f"diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n+++ b/{name}\n"
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n{body}{end}"


# -- secrets ----------------------------------------------------------------------------------------------
def redact(text: str, code: bool = False) -> str:
    """`text` without passwords, tokens and keys: named values, well-known shapes, and logins inside
    addresses.

    Args:
        code: the text is program code, where only quoted values are secrets (`token = next(tokens)` is none).
    """
    for value in (*_environment_secrets(), *_hidden):
        text = text.replace(value, BLANK)
    text = _USERINFO.sub(rf"\g<1>{BLANK}@", _SHAPES.sub(BLANK, text))
    text = _QUOTED.sub(rf"\g<1>{BLANK}", text)
    return text if code else _BARE.sub(rf"\g<1>{BLANK}", text)


_hidden: set[str] = set()


def hide(values: Iterable[str]) -> None:
    """From now on blank out these secrets, wherever this process writes or says them; very short ones cannot be."""
    _hidden.update(value for value in values if len(value) >= _SHORTEST)


def names_secret(key: str) -> bool:
    """Whether a key, such as `environment.kwargs.api_key`, says that its value is secret: the config's own rule."""
    return is_secret(key.strip().rpartition(".")[2].lstrip("-").replace("-", "_"), "a value", set())


def _environment_secrets() -> list[str]:
    """Values of environment variables whose names say that they are secret."""
    return [v for name, v in os.environ.items() if len(v) >= _SHORTEST and _SECRET_NAME.fullmatch(name)]


def _redact_arguments(arguments: Sequence[str]) -> list[str]:
    found: list[str] = []
    before = ""
    for argument in arguments:
        key, equals, _ = argument.partition("=")
        if equals and names_secret(key):
            found.append(f"{key}={BLANK}")
        elif before.startswith("-") and names_secret(before) and not argument.startswith("-"):
            found.append(BLANK)
        else:
            found.append(redact(argument))
        before = argument
    return found


def _redact_diff(diff: str) -> str:
    found, code = [], True
    for line in diff.splitlines(keepends=True):
        if line.startswith("+++ "):
            suffix = Path(line[4:].strip()).suffix
            code = suffix == ".py" or suffix not in _SOURCES | {"", ".env"}
        found.append(line if line.startswith(("diff ", "+++ ", "--- ")) else redact(line, code))
    return "".join(found)


# -- the log ----------------------------------------------------------------------------------------------
class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record), code=True)


class _LogFile(logging.FileHandler):
    """A full disk costs one line on the terminal, not a traceback for every message."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._told:
            self._told = True
            with contextlib.suppress(OSError, ValueError):  # stderr may go to the same disk
                print(f"warning: {self.baseFilename} cannot be written: {sys.exc_info()[1]}", file=sys.stderr)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


class _Console(logging.Handler):
    """To whatever `sys.stderr` is at that moment: a progress display puts its own there."""

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        with contextlib.suppress(OSError, ValueError):  # a closed terminal is no reason to fail
            print(f"{prefix}{self.format(record)}", file=sys.stderr)


def setup_logging(folder: Path, quiet: bool = False) -> Callable[[], None]:
    """Send the messages of the logger `uniarena` to `<folder>/run.log` and to the terminal.

    Args:
        quiet: only warnings and errors reach the terminal. Where the program configured logging itself, its
            handlers get everything and none is added for the terminal.

    Returns:
        a function that undoes it.
    """
    logger = logging.getLogger("uniarena")
    try:
        file = _LogFile(folder / LOG, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{folder / LOG} cannot be written: {error.strerror}.",
            path="experiment.run_dir",
            hint="make the run folder writable, or work on a copy of it.",
        ) from None
    file.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handlers: list[logging.Handler] = [file]
    if not logging.getLogger().handlers:
        console = _Console(logging.WARNING if quiet else logging.INFO)
        console.setFormatter(_Formatter("%(message)s"))
        console.addFilter(lambda record: getattr(record, "on_terminal", True))  # the file has everything
        handlers.append(console)
    level = logger.level
    logger.setLevel(min(logger.level or logging.INFO, logging.INFO))
    for handler in handlers:
        logger.addHandler(handler)

    def close() -> None:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(level)

    return close
