"""Configs: YAML, JSON or Python maps in, checked frozen dataclasses out. Imports neither torch nor Gymnasium.

    exp = load("ppo/cartpole", ["learner.clip_range=0.1"])    # an Experiment, or a ConfigError
    cfg = parse(PPO.Config, exp.learner.without("type"), "learner")
    text = dump(exp)                                          # canonical YAML

`@config` makes the class that a component's section is parsed into.
"""

from uniarena.config.aliases import canonical_name
from uniarena.config.assembly import brought_parts, check_components, component
from uniarena.config.dump import dump, dump_mapping, secrets_of, to_mapping
from uniarena.config.errors import ConfigError, Location
from uniarena.config.fields import Between, Field, WithDefaults, as_mapping, config, describe
from uniarena.config.load import has_learner, load
from uniarena.config.parse import parse, split
from uniarena.config.recipes import recipes, recipes_folder
from uniarena.config.reference import Reference
from uniarena.config.schema import (
    AgentConfig,
    DistributedConfig,
    EnvironmentConfig,
    Experiment,
    ExperimentConfig,
    SamplingConfig,
    TrainingConfig,
    WorkersConfig,
)
from uniarena.config.section import Section
from uniarena.config.text import from_text

__all__ = [
    "AgentConfig",
    "Between",
    "ConfigError",
    "DistributedConfig",
    "EnvironmentConfig",
    "Experiment",
    "ExperimentConfig",
    "Field",
    "Location",
    "Reference",
    "SamplingConfig",
    "Section",
    "TrainingConfig",
    "WithDefaults",
    "WorkersConfig",
    "as_mapping",
    "brought_parts",
    "canonical_name",
    "check_components",
    "component",
    "config",
    "describe",
    "dump",
    "dump_mapping",
    "from_text",
    "has_learner",
    "load",
    "parse",
    "recipes",
    "recipes_folder",
    "secrets_of",
    "split",
    "to_mapping",
]
