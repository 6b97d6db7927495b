"""Stopping at a threshold or on a plateau of a figure."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import uniarena
from tests.callbacks.fake_trainer import FakeTrainer
from uniarena.config import ConfigError, parse
from uniarena.trainer import events
from uniarena.trainer.callbacks.early_stop import EarlyStop, EarlyStopConfig


def feed(trainer: FakeTrainer, values: list[float]) -> int | None:
    """How many values it took to stop; None: it did not."""
    for count, value in enumerate(values, start=1):
        trainer.iterate(eval__return_mean=value)
        if trainer.should_stop:
            return count
    return None


def test_stops_at_the_threshold() -> None:
    trainer = FakeTrainer(EarlyStop(threshold=475)).start()
    assert feed(trainer, [100, 474.9, 475, 500]) == 3
    assert trainer.requested == ["eval/return_mean reached 475 (threshold 475)"]


def test_stops_when_nothing_improves_for_a_while() -> None:
    trainer = FakeTrainer(EarlyStop(patience=3)).start()
    assert feed(trainer, [1, 5, 4, 6, 6, 5, 3, 9]) == 7
    assert trainer.requested == ["eval/return_mean did not improve on 6 in 3 values"]


def test_an_improvement_must_exceed_min_delta() -> None:
    trainer = FakeTrainer(EarlyStop(patience=2, min_delta=1.0)).start()
    assert feed(trainer, [10, 11, 11, 99]) == 3


def test_small_may_be_good() -> None:
    assert feed(FakeTrainer(EarlyStop(patience=2, mode="min")).start(), [5, 4, 4, 4]) == 4
    assert feed(FakeTrainer(EarlyStop(threshold=0.1, mode="min")).start(), [5, 0.2, 0.1]) == 3


def test_nan_is_no_improvement() -> None:
    nan = float("nan")
    assert feed(FakeTrainer(EarlyStop(patience=2)).start(), [nan, nan, 1]) == 2
    assert feed(FakeTrainer(EarlyStop(patience=3, threshold=2)).start(), [nan, 1, nan, 2]) == 4


def test_does_not_stop_before_min_env_steps() -> None:
    trainer = FakeTrainer(EarlyStop(threshold=1, min_env_steps=300)).start()
    assert feed(trainer, [5, 5, 5]) == 3


def test_iterations_without_the_figure_do_not_count() -> None:
    trainer = FakeTrainer(EarlyStop(patience=2)).start()
    trainer.iterate(eval__return_mean=1.0)
    for _ in range(5):
        trainer.iterate(loss=1.0)
    assert not trainer.should_stop


def test_another_figure_can_be_watched() -> None:
    trainer = FakeTrainer(EarlyStop(metric="kl", threshold=0.1)).start()
    trainer.iterate(kl=0.2)
    assert trainer.should_stop


def test_patience_goes_on_after_a_resume(tmp_path: Path) -> None:
    values = [1.0, 5.0, 4.0, 4.0, 4.0]
    first = FakeTrainer(EarlyStop(patience=3), run_dir=tmp_path).start()
    feed(first, values[:3])
    folder = first.save("interrupt")
    assert folder is not None
    second = FakeTrainer(EarlyStop(patience=3), run_dir=tmp_path).resume(folder)
    assert feed(second, values[3:]) == 2


def test_a_figure_that_never_came_up_is_said_with_those_there_are(caplog: pytest.LogCaptureFixture) -> None:
    trainer = FakeTrainer(EarlyStop(metric="retrun", threshold=1)).start()
    trainer.iterate(return_mean=1.0, kl=0.0)
    trainer.end()
    assert "'retrun', which never came up; figures: kl, return_mean" in caplog.text


def test_a_run_that_was_cut_short_may_not_have_come_to_the_figure(caplog: pytest.LogCaptureFixture) -> None:
    trainer = FakeTrainer(EarlyStop(threshold=1)).start()
    trainer.iterate(kl=0.0)
    trainer.end("interrupted")  # also how a profile ends
    assert "never came up" not in caplog.text


def test_neither_threshold_nor_patience_is_refused() -> None:
    with pytest.raises(ConfigError, match="no threshold, no patience and no fall"):
        EarlyStop()
    with pytest.raises(ConfigError, match=r"callbacks\.0"):
        parse(EarlyStopConfig, {}, "callbacks.0")


def test_built_from_a_config_or_from_keywords() -> None:
    assert EarlyStop(EarlyStopConfig(patience=3)).cfg == EarlyStop(patience=3).cfg


# -- a fall --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("mode", "values", "stops"),
    [
        ("max", (0, 100, 60, 60), False),
        ("max", (0, 100, 40, 60, 40), False),
        ("max", (0, 100, 40, 40), True),
        ("max", (-1000, -200, -700, -700), True),
        ("max", (50, 40, 10, 0), False),  # it never rose
        ("min", (100, 0, 60, 60), True),
        ("max", (0, 100, math.nan, math.nan), True),
    ],
)
def test_half_of_what_was_gained_must_be_lost_twice_in_a_row(mode: Any, values: Any, stops: bool) -> None:
    trainer = FakeTrainer(EarlyStop(metric="figure", fall=0.5, mode=mode)).start()
    for value in values:
        trainer.iterate(figure=value)
    assert trainer.should_stop == stops


class Spoil:
    """Evaluates by hand: good at first, then ruined."""

    def __init__(self) -> None:
        self.returns = [1.0, 9.0, 2.0, 2.0, 2.0]
        self.best: dict[str, torch.Tensor] = {}

    def on_iteration_end(self, trainer: Any, event: Any) -> None:
        value = trainer.metrics["eval/return_mean"] = self.returns.pop(0)
        if value == 9.0:
            self.best = {k: v.clone() for k, v in trainer.agent.model.state_dict().items()}


def small_trainer(*callbacks: Any) -> Any:
    env = uniarena.make_env("CartPole-v1", num_envs=2, seed=1)
    learner = {"type": "ppo", "n_steps": 16, "n_epochs": 1, "batch_size": 32, "learning_rate": 1e-2}
    agent = uniarena.Agent.assemble(env, learner, {"hidden_sizes": [8]})
    return uniarena.Trainer(agent, env, callbacks=callbacks)


def test_a_falling_evaluation_ends_with_the_best_agent() -> None:
    spoil, stop = Spoil(), EarlyStop(fall=0.5, restore_best=True)
    trainer = small_trainer(spoil, stop)
    trainer.fit(320)
    trainer.close()
    assert trainer.counters.env_steps == 128
    assert trainer.stop_reason == (
        "eval/return_mean fell from 9 to 2, having begun at 1; the agent of 64 env steps is restored"
    )
    state = trainer.agent.model.state_dict()
    assert spoil.best and all(torch.equal(state[name], value) for name, value in spoil.best.items())


def test_the_best_agent_travels_in_the_state() -> None:
    first = EarlyStop(fall=0.5, restore_best=True)
    spoil = Spoil()
    trainer = small_trainer(spoil, first)
    trainer.fit(64)
    second = EarlyStop(fall=0.5, restore_best=True)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    trainer.callbacks[1] = second
    trainer._listeners = events.listeners(trainer.callbacks)
    trainer.fit(320)
    trainer.close()
    state = trainer.agent.model.state_dict()
    assert "restored" in trainer.stop_reason
    assert all(torch.equal(state[name], value) for name, value in spoil.best.items())


def test_the_last_evaluation_is_of_the_agent_that_is_kept(tmp_path: Path) -> None:
    config = {
        "environment": "CartPole-v1",
        "agent": {"policy": {"hidden_sizes": [8]}},
        "learner": {"type": "ppo", "n_steps": 32, "n_epochs": 8, "batch_size": 32, "learning_rate": 0.3},
        "training": {"total_timesteps": 20_000, "n_eval_episodes": 2, "eval_every_env_steps": 32},
        "callbacks": [
            {"type": "early_stop", "fall": 0.1, "patience": 4, "restore_best": True},
            {"type": "evaluate", "also_stochastic": True},
        ],
    }
    result = uniarena.train(config, run_dir=tmp_path / "run", quiet=True)
    assert "is restored" in result.stop_reason
    best, kept = (
        uniarena.Agent.load(result.run / "checkpoints" / name) for name in ("best", str(result.env_steps))
    )
    ours, theirs = best.model.state_dict(), kept.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    stored = json.loads((result.run / "result.json").read_text())["eval"]["return_mean"]
    assert stored == result.eval.return_mean
