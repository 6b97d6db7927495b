"""Bad losses, gradients, parameters and optimiser states: located before a step, and handled by every rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import uniarena
from tests.faults.broken import (
    NAN,
    Echo,
    Net,
    Poison,
    good,
    gradient,
    moments,
    parameter,
    trainer_of,
    two,
)
from uniarena import checkpoint
from uniarena.agent import Agent
from uniarena.config import ConfigError, dump, from_text, load
from uniarena.optim import NonFiniteError
from uniarena.trainer.callbacks import Checkpoint

RULES = ["skip", "clip", "rollback", "reinit"]


def steps_of(learner: str) -> int:
    return {"ppo": 320, "dqn": 240, "sac": 160}[learner]


def run(
    learner: str, guard: Any, poison: Poison | None = None, policy: dict[str, Any] | None = None, **rest: Any
) -> Any:
    trainer = trainer_of(
        learner, two(learner), guard, policy=policy, callbacks=[poison] if poison else [], **rest
    )
    try:
        trainer.fit(steps_of(learner))
    finally:
        trainer.close()
        assert good(trainer.agent)
    return trainer


# -- losses and gradients of a user's network --------------------------------------------------------------------
@pytest.mark.parametrize("learner", ["ppo", "dqn", "sac"])
def test_a_bad_loss_stops_before_the_step_and_is_named(learner: str):
    net = {"network": Net, "at": 5, "alone": learner != "ppo"}
    with pytest.raises(NonFiniteError) as caught:
        run(learner, "stop", policy=net)
    assert caught.value.where == "loss" and "no step was taken" in str(caught.value)
    if learner == "ppo":
        assert "policy_loss" in caught.value.names and "value_loss" not in caught.value.names


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("learner", ["ppo", "dqn", "sac"])
def test_a_bad_loss_and_every_rule(learner: str, rule: str):
    trainer = run(learner, rule, policy={"network": Net, "at": 5, "times": 2, "alone": learner != "ppo"})
    counts = trainer.guard.counts
    assert trainer.counters.env_steps == steps_of(learner) and trainer.counters.updates >= 3
    name = {"skip": "skipped_steps", "clip": "clipped_values", "rollback": "rollbacks", "reinit": "reinits"}[
        rule
    ]
    assert counts["faults"] >= 1 and counts[name] >= 1 and set(counts) == {"faults", name}
    assert not any(minimize.bad_steps for minimize in trainer.guard._minimizers.values())


def test_a_bad_gradient_is_named_by_its_parameter():
    with pytest.raises(NonFiniteError) as caught:
        run("ppo", "stop", policy={"network": Net, "at": 5, "slope": True})
    assert caught.value.where == "gradient"
    assert caught.value.names == ["policy.network.body.module.body.0.weight"]


@pytest.mark.parametrize("rule", RULES)
def test_a_bad_gradient_and_every_rule(rule: str):
    trainer = run("ppo", rule, policy={"network": Net, "at": 5, "slope": True})
    assert trainer.counters.env_steps == 320 and trainer.guard.counts["faults"] == 1


@pytest.mark.parametrize("rule", ["skip", "clip", "rollback", "reinit"])
@pytest.mark.parametrize("learner", ["ppo", "sac"])
def test_tries_are_bounded(rule: str, learner: str):
    net = {"network": Net, "at": 3, "times": 10**6, "alone": learner != "ppo"}
    with pytest.raises(NonFiniteError) as caught:
        run(learner, {"rule": rule, "max_tries": 3}, policy=net)
    assert "was tried 3 times" in "\n".join(caught.value.__notes__)


def test_values_are_watched():
    """A value beyond the bound is finite, and so is its loss."""

    class Far(Net):
        def forward(self, obs: torch.Tensor) -> Any:
            value, out = super().forward(obs)
            return value + 3e16, out

    with pytest.raises(
        NonFiniteError, match=r"value is 3e\+16 at \[0, 0\] \(beyond max_abs=1e\+15\)"
    ) as caught:
        run("ppo", "stop", policy={"network": Far})
    assert caught.value.where == "value"
    with pytest.raises(NonFiniteError) as caught:  # no update is left: the whole of each is left out
        run("ppo", {"rule": "skip", "max_tries": 2}, policy={"network": Far})
    assert caught.value.in_a_row == 3


# -- what callbacks do -------------------------------------------------------------------------------------------
POISONS = {
    "gradient in on_learn_step": ("on_learn_step", gradient, "gradient", "after on_learn_step"),
    "parameter in on_learn_step": ("on_learn_step", parameter, "parameter", "policy"),
    "moments in on_learn_step": ("on_learn_step", moments, "optimizer", "exp_avg_sq of "),
    "parameter in on_update_end": ("on_update_end", parameter, "parameter", "policy"),
    "moments in on_update_end": ("on_update_end", moments, "optimizer", "exp_avg_sq of "),
    "parameter in on_batch_collected": ("on_batch_collected", parameter, "parameter", "policy"),
    "moments in on_iteration_end": ("on_iteration_end", moments, "optimizer", "exp_avg_sq of "),
}


@pytest.mark.parametrize("learner", ["ppo", "sac"])
@pytest.mark.parametrize("name", POISONS)
def test_what_a_callback_spoils_is_found_and_named(name: str, learner: str):
    event, what, where, said = POISONS[name]
    at = 1 if event == "on_iteration_end" else 40 if event == "on_batch_collected" and learner == "sac" else 3
    settings = {"updates_per_env_step": 0.1} if learner == "sac" else {}
    poison = Poison(event, what, at)
    trainer = trainer_of(learner, two(learner), callbacks=[poison], settings=settings)
    if event == "on_iteration_end" and learner == "sac":
        trainer.schedule = type(trainer.schedule)(1, 0.1, 20, iteration=40)
    with pytest.raises(NonFiniteError) as caught:
        trainer.fit(steps_of(learner))
    assert caught.value.where == where and said in str(caught.value) and good(trainer.agent)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", POISONS)
def test_and_every_rule(name: str, rule: str):
    event, what, *_ = POISONS[name]
    trainer = run("ppo", rule, Poison(event, what, at=3))
    assert trainer.counters.env_steps == 320 and trainer.guard.counts["faults"] >= 1
    assert trainer.guard._tries == 0


@pytest.mark.parametrize("rule", ["skip", "clip", "rollback", "reinit"])
def test_what_is_spoilt_again_and_again_ends_the_run(rule: str):
    with pytest.raises(NonFiniteError) as caught:
        run("ppo", {"rule": rule, "max_tries": 2}, Poison("on_update_end", parameter, times=99))
    assert "was tried 2 times" in "\n".join(caught.value.__notes__)


def test_rollback_goes_back_and_takes_smaller_steps():
    poison = Poison("on_update_end", parameter, at=3)
    guard = {"rule": "rollback", "learning_rate_factor": 0.5}
    trainer = run("ppo", guard, poison)
    optimizer = trainer.agent.learner.optimizer
    assert optimizer.factor == 0.5 and optimizer.lr == pytest.approx(1.5e-3)
    assert (
        float(next(iter(optimizer.torch.state.values()))["step"]) == 4 * 2 * 4
    )  # of five updates one is undone


def test_reinit_is_of_the_part_at_fault_alone():
    before: dict[str, torch.Tensor] = {}
    after: dict[str, torch.Tensor] = {}

    def weights(trainer: Any) -> dict[str, torch.Tensor]:
        return {name: p.detach().clone() for name, p in trainer.agent.model.named_parameters()}

    class Watch:
        def on_fault(self, trainer: Any, event: Any) -> None:
            before.update(weights(trainer))

        def on_iteration_end(self, trainer: Any, event: Any) -> None:
            if before and not after:
                after.update(weights(trainer))

    trainer = trainer_of("ppo", two("ppo"), "reinit", callbacks=[Poison("on_update_end", parameter), Watch()])
    trainer.fit(320)
    same = {name: torch.equal(before[name], after[name]) for name in before}
    assert all(same[name] == name.startswith("value_net") for name in same if "bias" not in name)
    assert good(trainer.agent)


def test_reinit_of_a_named_part_and_its_targets():
    trainer = trainer_of(
        "sac", two("sac"), {"rule": "reinit", "part": "q"}, callbacks=[Poison("on_update_end", moments, at=9)]
    )
    trainer.fit(160)
    assert good(trainer.agent) and trainer.guard.counts["reinits"] == 1
    with pytest.raises(
        ConfigError, match="no part of this agent is called 'brain'; its parts are policy, value_net"
    ) as caught:
        trainer_of("ppo", two("ppo"), {"rule": "reinit", "part": "brain"})
    assert caught.value.path == "training.guard.part"


def test_a_callback_hears_of_a_fault_and_chooses():
    heard: list[tuple[str, str]] = []

    class Choose:
        def on_fault(self, trainer: Any, event: Any) -> None:
            heard.append((event.error.where, event.rule))
            trainer.guard.rule = "skip"

    trainer = trainer_of("ppo", two("ppo", where="reward"), callbacks=[Choose()])
    trainer.fit(128)
    assert heard == [("reward", "stop")] and trainer.guard.counts["dropped_rows"] == 4


def test_the_predictor_of_a_bonus_is_guarded_too():
    def spoil(trainer: Any, event: Any) -> None:
        next(trainer.agent.bonuses[0].predictor.parameters()).view(-1)[0] = NAN

    parts = {"intrinsic": {"type": "rnd"}}
    with pytest.raises(NonFiniteError, match="parameter bonus 0: predictor"):
        run("ppo", "stop", Poison("on_update_end", spoil), parts=parts)
    for rule in RULES:
        trainer = run("ppo", rule, Poison("on_update_end", spoil), parts=parts)
        (bonus,) = trainer.agent.bonuses
        assert all(bool(x.isfinite().all()) for x in (*bonus.parameters(), bonus.scale._returns))


@pytest.mark.parametrize("rule", RULES)
def test_the_predictor_of_a_bonus_with_replay_is_guarded_too(rule: str):
    def spoil(trainer: Any, event: Any) -> None:
        next(trainer.agent.bonuses[0].predictor.parameters()).view(-1)[0] = NAN

    parts = {"intrinsic": {"type": "rnd"}, "buffer": {"type": "replay", "capacity": 1000}}
    specs = two("dqn", where="obs", at=47, every=60)
    trainer = trainer_of("dqn", specs, rule, callbacks=[Poison("on_update_end", spoil)], parts=parts)
    trainer.fit(240)
    (bonus,) = trainer.agent.bonuses
    assert good(trainer.agent) and all(
        bool(x.isfinite().all()) for x in (*bonus.parameters(), *bonus.buffers())
    )
    assert trainer.guard.counts["faults"] == 3  # the predictor, and two observations


def test_priorities_of_a_step_that_was_left_out_stay_as_they_are():
    parts = {"buffer": {"type": "prioritized", "capacity": 1000}}
    trainer = run("dqn", "skip", policy={"network": Net, "at": 5, "alone": True}, parts=parts)
    assert trainer.guard.counts["skipped_steps"] == 1


@pytest.mark.parametrize("rule", RULES)
def test_it_learns_after_a_fault(rule: str):
    poison = Poison("on_update_end", parameter, at=4)
    trainer = trainer_of("ppo", [Echo] * 4, rule, callbacks=[poison])
    trainer.fit(2560)
    trainer.close()
    assert (
        trainer.guard.counts["faults"] >= 1 and trainer.metrics["return_mean"] > 6.5
    )  # of 10; chance is 3.3


# -- runs on disk ------------------------------------------------------------------------------------------------
def config(**training: Any) -> dict[str, Any]:
    return {
        "environment": {"id": "tests.faults.broken:Echo", "num_envs": 2},
        "learner": {"type": "ppo", "n_steps": 32, "batch_size": 32, "n_epochs": 2},
        "agent": {"policy": {"hidden_sizes": [8]}},
        "training": {"total_timesteps": 640, "n_eval_episodes": 1, "eval_every_env_steps": 640, **training},
    }


@pytest.mark.parametrize("kind", ["experience", "agent"])
@pytest.mark.parametrize("learner", ["ppo", "dqn"])
def test_stop_leaves_a_good_checkpoint_that_goes_on(tmp_path: Path, kind: str, learner: str):
    tree, callbacks = config(save_every_env_steps=10_000), []
    if learner == "dqn":
        tree["learner"] = {"type": "dqn", "learning_starts": 50, "batch_size": 16}
        tree["agent"]["buffer"] = {"capacity": 1000}
    if kind == "experience":
        tree["environment"]["kwargs"] = {"where": "reward", "at": 199}
    else:
        callbacks = [Poison("on_learn_step", parameter, at=14)]
    with pytest.raises(NonFiniteError) as caught:
        uniarena.train(tree, run_dir=tmp_path / "run", quiet=True, callbacks=callbacks)
    notes = "\n".join(caught.value.__notes__)
    assert "The last good state is kept in" in notes and "uniarena resume" in notes
    (folder,) = (tmp_path / "run" / "checkpoints").glob("[0-9]*")
    meta = checkpoint.read_meta(folder)
    assert meta["kind"] == "fault" and str(folder) in notes
    assert good(Agent.load(folder))
    result = uniarena.resume(
        tmp_path / "run",
        quiet=True,
        callbacks=[Poison("on_learn_step", parameter, at=0)] if callbacks else [],
    )
    assert result.env_steps == 640 and result.eval is not None


def test_no_bad_weights_are_ever_saved(tmp_path: Path):
    """A callback spoils them right before the checkpoint is written."""
    callbacks = [Poison("on_iteration_end", parameter, at=3), Checkpoint(every_env_steps=64)]
    trainer = trainer_of("ppo", two("ppo"), callbacks=callbacks, run_dir=tmp_path)
    with pytest.raises(NonFiniteError, match="parameter policy"):
        trainer.fit(640)
    folders = sorted((tmp_path / "checkpoints").iterdir(), key=lambda path: int(path.name))
    assert [folder.name for folder in folders] == ["64", "128", "192"]
    assert all(good(Agent.load(folder)) for folder in folders)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("learner", ["ppo", "dqn"])
def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path: Path, rule: str, learner: str):
    """The checkpoint falls into a spoilt episode; faults come before and after it."""

    def fresh(stop: int, run_dir: Path | None = None) -> Any:
        ends = Poison("on_iteration_end", lambda trainer, event: trainer.request_stop("half"), at=stop)
        callbacks = [ends, Checkpoint(every_env_steps=64)]
        specs = two(learner, where="reward", at=31, every=25)
        return trainer_of(learner, specs, rule, callbacks=callbacks, run_dir=run_dir)

    never = 10**6
    whole, half, other = fresh(never), fresh(1, tmp_path), fresh(never)
    whole.fit(320)
    half.fit(320)
    assert half.counters.env_steps == 64 and (half.guard.barred is None) == (rule == "clip")
    other.load_state_dict(checkpoint.load(tmp_path / "checkpoints" / "64")[0])
    other.fit(320)
    assert other.guard.counts == whole.guard.counts and whole.guard.counts["faults"] >= 4
    states = [trainer.agent.learner.state_dict() for trainer in (whole, other)]
    assert all(
        torch.equal(x, states[1][name]) for name, x in states[0].items() if isinstance(x, torch.Tensor)
    )


# -- the section -------------------------------------------------------------------------------------------------
def test_a_rule_alone_is_a_section():
    short, long = load(config(guard="skip")), load(config(guard={"rule": "skip"}))
    assert short.training.guard == long.training.guard and short.training.guard.rule == "skip"
    assert load(config()).training.guard.rule == "stop"
    assert load(from_text(dump(short), "config.yaml")).training.guard == short.training.guard
    with pytest.raises(ConfigError, match="guard") as caught:
        load(config(guard="skipp"))
    assert "did you mean skip?" in str(caught.value)
