"""The returns by which a run's score is normalised, wherever its config says that they are."""

from __future__ import annotations

import logging

from uniarena.config import ConfigError, Experiment, Reference, component
from uniarena.config.assembly import of_data
from uniarena.config.reference import OF_DATA, named
from uniarena.data import DataError, load

log = logging.getLogger("uniarena")
WHERE = "training.reference"


def reference_of(exp: Experiment) -> Reference | None:
    """The reference of a run; None where its config names none, or no agent of its data's card is an expert.

    Raises:
        ConfigError: the run has no data whose card could be asked, or the card does not say.
        DataError: the data cannot be read.
    """
    given = exp.training.reference
    if not isinstance(given, str):
        return given
    if given != OF_DATA:
        return named(given, WHERE)
    if exp.data is None:
        raise ConfigError(
            "the run has no data whose card could name its returns",
            WHERE,
            hint="write {random: …, expert: …}, or the name of a D4RL dataset",
        )
    cfg = component("buffer", of_data(exp.data, exp.learner["type"]), "data")[1]
    if not hasattr(cfg, "path"):
        raise ConfigError("this data has no file, and so no card", WHERE, hint="write {random: …, expert: …}")
    data = load(cfg, lazy=True)
    origin = data.source.origin
    random, agents = origin.get("random_return"), origin.get("agents") or {}
    if random is None and origin.get("kind") == "random":
        random = float(data.returns.mean())
    if random is None or not agents:
        raise ConfigError(
            f"{cfg.path} does not say what random actions and an expert earn; sets made by data.made_from do",
            WHERE,
            hint="write {random: …, expert: …}",
        )
    expert = max(agents.values())
    if not expert > random:
        log.warning(
            "there is no score: the agents of %s earn %g at most, and random actions %g, so none of them is an expert; "
            "training.reference={random: …, expert: …} names others",
            cfg.path,
            expert,
            random,
        )
        return None
    return Reference(random=float(random), expert=float(expert))


def known_reference(exp: Experiment) -> Reference | None:
    """The same, for whoever evaluates later: where it can no longer be had, that is said, and there is no score."""
    try:
        return reference_of(exp)
    except (ConfigError, DataError) as error:
        log.warning("there is no score: %s", error)
        return None
