"""Regularisers put to work: built for an agent, and added to the loss of the step that moves its policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from uniarena.batch import Batch
from uniarena.config import ConfigError, parse
from uniarena.learners.base import Learner
from uniarena.learners.regularizers.base import Regularizer, Setting, reached
from uniarena.nets.inference import eval_mode
from uniarena.ops.statistics import Metrics
from uniarena.optim import Derived, LossFn, Optimizer
from uniarena.registry import import_path, lookup
from uniarena.seeding import preserved_globals

A = TypeVar("A")


class Term(NamedTuple):
    """A regulariser, its name in figures, and the optimiser whose loss it is a part of."""

    name: str
    regularizer: Regularizer
    optimizer: Optimizer


class Regularizers:
    """All of one learner, for `Minimize.regularizers`.

    Args:
        learner: whose progress the weights go by.
        terms: in the order of the configuration.
    """

    def __init__(self, learner: Learner, terms: Sequence[Term]) -> None:
        self.learner, self.terms = learner, list(terms)

    def added(self, loss_fn: LossFn, optimizer: Optimizer) -> LossFn:
        """The loss of one step with the terms of its optimiser. Rows are drawn here, once for all of its passes."""
        own = [term for term in self.terms if term.optimizer is optimizer]
        if not own:
            return loss_fn
        weights = [term.regularizer.weight(self.learner.progress) for term in own]
        drawn = [
            term.regularizer.draw() if weight else None for term, weight in zip(own, weights, strict=True)
        ]

        def whole(batch: Batch) -> tuple[Tensor | Derived, Metrics]:
            loss, metrics = loss_fn(batch)
            metrics = dict(metrics)
            for term, weight, rows in zip(own, weights, drawn, strict=True):
                prefix = f"regularizer/{term.name}_"
                metrics[f"{prefix}weight"] = torch.tensor(weight, dtype=torch.float64)
                if not weight:
                    continue
                value, more = term.regularizer.loss(batch if rows is None else rows)
                loss = _sum(loss, weight * value)
                figures = {"loss": value.detach(), **more}
                metrics |= {f"{prefix}{key}": figure for key, figure in figures.items()}
            return loss, metrics

        return whole

    def describe(self) -> str:
        """One line: each by its name, and what it goes by."""
        return "; ".join(f"{term.name} ({term.regularizer.describe()})" for term in self.terms)

    def state_dict(self) -> dict[str, Any]:
        return {term.name: term.regularizer.state_dict() for term in self.terms}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave; one that was not there begins."""
        for term in self.terms:
            if term.name in state:
                term.regularizer.load_state_dict(state[term.name])


def regularize(agent: A, sections: Any) -> A:
    """Add the regularisers of the section `learner.regularizers` to an agent's learner.

    Args:
        agent: an `Agent`, with its learner built.
        sections: a list of maps, or one map; empty or None: nothing is changed.

    Returns:
        the agent.

    Raises:
        ConfigError: an unknown type, wrong keys, data or a policy of other spaces, or a learner that cannot take it.
    """
    given = [sections] if isinstance(sections, Mapping) else list(sections or ())
    if given:
        learner, terms = agent.learner, list[Term]()  # type: ignore[attr-defined]
        for index, section in enumerate(given):
            name = str(import_path(section["type"])).rpartition(":")[2]
            count = sum(term.name.rpartition("-")[0] == name or term.name == name for term in terms)
            terms.append(_term(agent, section, index, f"{name}-{count + 1}" if count else name))
        learner.minimize.regularizers = Regularizers(learner, terms)
    return agent


def _term(agent: Any, section: Mapping[str, Any], index: int, name: str) -> Term:
    where, learner = f"learner.regularizers.{index}", agent.learner
    setting = Setting(
        where=where,
        observation_space=agent.observation_space,
        policy_space=agent.action_map.policy_space,
        action_space=agent.action_map.env_space,
        device=agent.device,
        generator=agent.streams.torch(f"regularizer/{index}"),
        load=type(agent).load,
    )
    kind = lookup("regularizer", section["type"])
    cfg = parse(kind.Config, {key: value for key, value in section.items() if key != "type"}, where)
    with preserved_globals(), eval_mode(learner.model):
        regularizer = kind(cfg, learner, setting)
        needed = reached(regularizer.loss(regularizer.probe())[0])
    for optimizer in learner.optimizers.values():
        if needed and needed <= {id(parameter) for parameter in optimizer.parameters}:
            return Term(name, regularizer, optimizer)
    raise ConfigError(
        f"{agent.spec['learner']['type']} has no step of its own for what the policy is made of, which a term could be "
        "added to.",
        path=f"{where}.type",
        hint="use a learner with one policy network, such as ppo, sac, td3 or iql, or remove it.",
    )


def _sum(loss: Tensor | Derived, extra: Tensor) -> Tensor | Derived:
    """Their sum. Derivatives that were written down stay so, and autograd's are added to them."""
    if isinstance(loss, Tensor):
        return loss + extra
    by_hand = loss

    def backward() -> None:
        by_hand.backward()
        extra.backward()

    return Derived(by_hand.value + extra.detach(), backward)
