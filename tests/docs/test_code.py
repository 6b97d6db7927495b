"""The code on the pages runs as it stands, with a few hundred environment steps instead of many thousand."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import uniarena
from uniarena.checkpoint.find import meant
from uniarena.config import check_components, load
from uniarena.run.training import read
from uniarena.trainer import Trainer

from .pages import PAGES, READMES, ROOT, Block, blocks

STEPS = 300
OWN = ROOT / "docs" / "write-your-own.md"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder that is on the path, in which every training is short and quiet."""
    train, fit = uniarena.train, Trainer.fit

    def short_train(config: Any, overrides: Any = (), **options: Any) -> Any:
        exp = read(config, overrides)
        few = ["training.n_eval_episodes=1"]
        for k, part in enumerate(exp.parts):
            length = "total_timesteps" if part.data is None else "total_updates"
            few.append(f"{f'stages.{k}.' * bool(exp.stages)}training.{length}={STEPS}")
        return train(config, [*overrides, *few], **{**options, "quiet": True})

    monkeypatch.setattr(uniarena, "train", short_train)
    monkeypatch.setattr(Trainer, "fit", lambda self, env_steps: fit(self, min(env_steps, STEPS)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def run(page: Path, block: Block, names: dict[str, Any]) -> None:
    """A named file is written, and imported or trained from; other code runs in the names of the page."""
    if block.file:
        Path(block.file).write_text(block.text, encoding="utf-8")
        importlib.invalidate_caches()
        if block.language == "yaml":
            uniarena.train(block.file)
        else:
            importlib.import_module(block.file.removesuffix(".py"))
    elif block.language == "python":
        code = "\n" * (block.line - 1) + block.text  # so that a traceback names the page's own line
        exec(compile(code, str(page), "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if page != READMES[1]], ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path, scratch: Path):
    names: dict[str, Any] = {"__name__": page.stem}
    found = blocks(page, "python", "yaml")
    for block in found:
        run(page, block, names)
    trained = sum("uniarena.train(" in b.text or b.file.endswith(".yaml") for b in found)
    assert trained or page not in (READMES[0], OWN)
    figures = [meant(run) / "metrics.jsonl" for run in (scratch / "runs").glob("*")]  # really trained
    assert len(figures) == trained and all(file.stat().st_size for file in figures)


@pytest.mark.parametrize(
    ("page", "block"),
    [(page, block) for page in PAGES for block in blocks(page, "yaml") if not block.file],
    ids=lambda value: f"{value.line}" if isinstance(value, Block) else value.stem,
)
def test_every_piece_of_yaml_loads_on_top_of_a_recipe(page: Path, block: Block, scratch: Path):
    (scratch / "piece.yaml").write_text(block.text, encoding="utf-8")
    check_components(load(["ppo/cartpole", "piece.yaml"]))


def test_both_readmes_show_the_same_code():
    first, second = (
        [(b.language, strip(b.text)) for b in blocks(page, "python", "yaml")] for page in READMES
    )
    assert first == second


def strip(text: str) -> str:
    """Code without comments, which are in the page's own language."""
    return "\n".join(line.partition("#")[0].rstrip() for line in text.splitlines())
