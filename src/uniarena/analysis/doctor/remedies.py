"""Changes that the doctor prescribes, with numbers that follow from what is set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from uniarena.analysis.doctor.finding import Change
from uniarena.analysis.doctor.setup import Setup
from uniarena.config.fields import field_types
from uniarena.config.schema import UPDATES
from uniarena.registry import lookup


def longer(setup: Setup) -> Change:
    """The usual number of updates from data, or twice as many where it has that already."""
    value = UPDATES if setup.total < UPDATES else 2 * setup.total
    return Change(
        f"training.total_updates={value}", f"the run has {setup.total:,} updates; the default is {UPDATES:,}"
    )


def learner(setup: Setup, name: str, why: str) -> Change:
    """Another learner; settings of the present one that it lacks are taken away, since they would be refused."""
    known = field_types(lookup("learner", name).Config)
    now = setup.section("learner")
    gone = [key for key, value in now.items() if key not in {*known, "type"} and value is not None]
    if not gone:
        return Change(f"learner.type={name}", why)
    return Change(f"learner={{type: {name}, {', '.join(f'{key}: null' for key in gone)}}}", why)


def rate(setup: Setup, value: float, why: str) -> Change:
    """Another learning rate; a schedule keeps its kind and end."""
    given = setup.learner("learning_rate")
    if isinstance(given, int | float) or given is None:
        return Change(f"learner.learning_rate={value:g}", why)
    get = given.get if isinstance(given, Mapping) else lambda key, other: getattr(given, key, other)
    end = min(float(get("end", 0.0)), value)
    return Change(
        f"learner.learning_rate={{type: {get('type', 'linear')}, start: {value:g}, end: {end:g}}}", why
    )


def slower(setup: Setup) -> Change:
    """A lower learning rate: 3e-4 for rates far above it, 1e-4 for 3e-4, a third of smaller ones."""
    now = setup.number("learning_rate", 3e-4)
    value = 3e-4 if now > 1e-3 else 1e-4 if now > 1e-4 else float(f"{now / 3:.1g}")
    return rate(setup, value, f"the learning rate is {now:g}")


def faster(setup: Setup) -> Change:
    """A higher learning rate: 3e-4, or three times as much."""
    now = setup.number("learning_rate", 3e-4)
    return rate(setup, 3e-4 if now < 1e-4 else float(f"{3 * now:.1g}"), f"the learning rate is {now:g}")


def clip(setup: Setup) -> Change:
    """A clip range of 0.2, or of 0.1 where it is that already."""
    now = setup.number("clip_range", 0.2)
    value = 0.2 if now > 0.2 else 0.1
    return Change(f"learner.clip_range={value:g}", f"the clip range is {now:g}: closer to the old policy")


def kl_stop(setup: Setup) -> Change:
    """Stop the epochs of an update at a KL."""
    return Change("learner.target_kl=0.02", "ends the epochs of an update once it moved the policy this far")


def fewer_epochs(setup: Setup) -> Change:
    """A third of the epochs."""
    now = int(setup.number("n_epochs", 10))
    return Change(f"learner.n_epochs={max(1, now // 3)}", f"{now} epochs use each rollout too often")


def more_epochs(setup: Setup) -> Change:
    """Ten epochs, or twice as many."""
    now = int(setup.number("n_epochs", 10))
    return Change(f"learner.n_epochs={10 if now < 10 else 2 * now}", f"{now} epochs use each rollout little")


def more_entropy(setup: Setup) -> Change:
    """An entropy bonus of 0.01, or of 0.05 to 0.1 where there is one."""
    now = setup.number("ent_coef", 0.0)
    value = 0.01 if now < 0.01 else 0.05 if now < 0.05 else 0.1
    return Change(f"learner.ent_coef={value:g}", f"the entropy bonus is {now:g}; up to 0.1 is usual")


def less_entropy(setup: Setup) -> Change:
    """A tenth of the entropy bonus."""
    now = setup.number("ent_coef", 0.01)
    return Change(
        f"learner.ent_coef={now / 10:g}", f"the entropy bonus is {now:g}: randomness is paid too well"
    )


def shorter_traces(setup: Setup) -> Change:
    """λ 0.95 → 0.9."""
    now = setup.number("gae_lambda", 0.95)
    value = 0.95 if now > 0.95 else 0.9 if now > 0.9 else 0.8
    return Change(
        f"learner.gae_lambda={value:g}", f"λ is {now:g}; a lower one gives advantages less variance"
    )


def larger_batch(setup: Setup) -> Change:
    """min(256 · 2ⁿ, rows of a rollout): the next power above the present batch."""
    now = int(setup.number("batch_size", 64))
    rows = int(setup.number("n_steps", 2048)) * int(setup.section("environment").get("num_envs") or 1)
    value = 256
    while value <= now:
        value *= 2
    value = min(value, max(now, rows)) if setup.on_policy else min(value, 4096)
    return Change(f"learner.batch_size={value}", f"minibatches of {now} rows give noisy gradients")


def clip_gradients(setup: Setup) -> Change:
    """A longest gradient of 5.0, or of 0.5 where there is a bound."""
    now = setup.learner("max_grad_norm")
    value = 5.0 if now is None or now > 5.0 else 0.5
    return Change(f"learner.max_grad_norm={value:g}", f"the longest gradient is {now or 'not bounded'}")


def decay_weights(setup: Setup) -> Change:
    """Weight decay."""
    return Change(
        "learner.optimizer.weight_decay=1e-4", "holds weights small, so that the critic fits less noise"
    )


def less_value(setup: Setup) -> Change:
    """Half of the value loss's weight."""
    now = setup.number("vf_coef", 0.5)
    return Change(f"learner.vf_coef={now / 2:g}", f"the value loss has weight {now:g}")


def wrapper(setup: Setup, name: str, why: str) -> Change:
    """One more wrapper behind those that are there."""
    listed = ", ".join(_flow(each) for each in [*setup.wrappers, name])
    return Change(f"environment.wrappers=[{listed}]", why)


def smaller_rewards(setup: Setup, why: str) -> tuple[Change, ...]:
    """Normalised rewards; from data alone there are no returns of experience to normalise by."""
    return () if setup.offline else (wrapper(setup, "normalize_reward", why),)


def _flow(entry: Any) -> str:
    """A wrapper as YAML on one line."""
    if not isinstance(entry, Mapping):
        return str(entry)
    plain = {key: value for key, value in entry.items() if value is not None}
    return str(plain["type"]) if set(plain) == {"type"} else json.dumps(plain)


def inspect(setup: Setup, why: str) -> Change:
    """A look at the data of a run from data alone."""
    data = setup.section("data")
    return Change("", f"look at the data: uniarena data inspect {data.get('path', 'FILE')}; {why}")


def best_episodes(setup: Setup) -> Change:
    """The best fifth of the data's episodes, or half of the share that is taken."""
    now = setup.section("data").get("top_fraction")
    value = now / 2 if isinstance(now, int | float) else 0.2
    return Change(
        f"data.top_fraction={value:g}", "learns from the episodes that returned most, and no others"
    )


def stop_in_time(setup: Setup) -> Change:
    """The best agent kept; of a learner that holds actions out, the one that predicts them best."""
    if setup.offline and setup.has("validation_share"):
        fields = "metric: validation_loss, mode: min, patience: 5, restore_best: true"
        return Change(
            f"callbacks=[{{type: early_stop, {fields}}}]", "ends where held-out actions are told best"
        )
    return Change("callbacks=[{type: early_stop, fall: 0.5, restore_best: true}]", "keeps the best agent")


def wider(setup: Setup) -> Change:
    """Networks of twice the width."""
    now = list(setup.section("agent").get("policy", {}).get("hidden_sizes") or [64, 64])
    return Change(
        f"agent.policy.hidden_sizes=[{', '.join(str(2 * size) for size in now)}]",
        f"layers are {now} wide; a wider network may see more",
    )


def less_intrinsic(setup: Setup) -> tuple[Change, ...]:
    """A tenth of every bonus's weight, or one that ends with the run."""
    found: list[Change] = []
    entries = setup.section("agent").get("intrinsic") or []
    for index, entry in enumerate([entries] if isinstance(entries, Mapping) else entries):
        weight = entry.get("reward_scale", 0.5) if isinstance(entry, Mapping) else 0.5
        weight = weight.get("start", 0.5) if isinstance(weight, Mapping) else weight
        place = "agent.intrinsic" if isinstance(entries, Mapping) else f"agent.intrinsic.{index}"
        key = f"{place}.reward_scale"
        found += [
            Change(f"{key}={weight / 10:g}", f"the bonus has weight {weight:g}"),
            Change(f"{key}={{type: linear, start: {weight:g}, end: 0}}", "or lets it fade over the run"),
        ]
    return tuple(found)


def linear_epsilon(setup: Setup) -> Change:
    """ε from 1 to 0.05 over a fifth of the run."""
    return Change(
        "agent.explorer.epsilon={type: linear, start: 1.0, end: 0.05, fraction: 0.2}",
        "ε falls linearly and stays low for the rest of the run",
    )
