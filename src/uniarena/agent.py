"""The agent: model, explorer, learner, buffer and normalisers in one container; any part can be exchanged by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uniarena import checkpoint
from uniarena.batch import Rollout, Tree, tree_leaves, tree_map
from uniarena.buffers.rollout import RolloutBuffer, RolloutBufferConfig
from uniarena.config import ConfigError, parse
from uniarena.envs.actions import ActionMap
from uniarena.envs.protocol import Env
from uniarena.envs.spaces import space_from_json, space_to_json
from uniarena.explorers.actor import Actor
from uniarena.learners.base import Learner, Update, declared
from uniarena.nets.encoders import EncoderConfig, image_leaves
from uniarena.nets.normalizer import ObservationNormalizer, RewardScaler
from uniarena.optim import Minimize
from uniarena.registry import import_path, lookup
from uniarena.seeding import Streams
from uniarena.values.model import Output, build_model

Section = Mapping[str, Any]


class Agent:
    """Five parts in one container: policy, value, explorer, learner, buffer; beside them normalisers and bonuses.

    Build it with `Agent.assemble(env, …)`, or from a run with `Agent.load(path)`; `spec` is what it is built from.

    Attributes:
        model: policy and value networks, with the observation normaliser inside.
        learner, buffer, explorer: exchangeable parts.
        bonuses: intrinsic motivation, summed with their weights.
        streams: named random generators.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = _saved(spec)
        self.observation_space = space_from_json(spec["observation_space"])
        self.action_map = ActionMap.from_json(spec["action_map"])
        self.device = torch.device(spec["device"])
        self.streams = Streams(spec["seed"])
        norm = spec["normalize_observation"]
        self.normalizer = None if norm is None else self._build_normalizer(norm)
        space = self.action_map.policy_space
        self.model = build_model(
            self.observation_space, space, spec["policy"], spec["value"], self.normalizer, self.streams
        ).to(self.device)
        self.learner = self._build_learner(spec["learner"])
        self.explorer = _build("explorer", spec["explorer"], "agent.explorer")
        self.buffer = self._build_buffer(spec["buffer"])
        self.bonuses = [self._build_bonus(section, i) for i, section in enumerate(spec["intrinsic"])]
        scale = spec["normalize_reward"]
        gamma = declared(self.learner.cfg, "gamma")
        self.reward_scaler = (
            None if scale is None else RewardScaler(spec["columns"], **{"gamma": gamma, **scale})
        )
        self._actor: Actor | None = None
        self._progress = 0.0

    @classmethod
    def assemble(
        cls,
        env: Env,
        learner: str | type | Section = "ppo",
        policy: Section | None = None,
        value: Section | None = None,
        *,
        parts: Section | None = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> Agent:
        """An agent for the spaces of `env`.

        Args:
            learner: registered name, class, or the YAML section `learner` as a mapping.
            policy, value: the sections `agent.policy` and `agent.value`; value inherits what it does not set.
            parts: further sections of `agent`: `explorer`, `buffer`, `intrinsic`.
            device: where the networks live.

        Raises:
            ConfigError: an unknown name or field, or an impossible combination.
        """
        parts = dict(parts or {})
        odd = set(parts) - {"explorer", "buffer", "intrinsic"}
        if odd:
            raise ConfigError(f"Agent.assemble(parts=…) does not know {', '.join(sorted(odd))}", path="agent")
        intrinsic = parts.get("intrinsic") or []
        declared = getattr(env, "normalization", {})
        spec = {
            "observation_space": space_to_json(env.observation_space),
            "action_map": env.action_map.to_json(),
            "columns": env.num_envs,
            "seed": seed,
            "device": device,
            "learner": dict(learner) if isinstance(learner, Mapping) else {"type": learner},
            "policy": dict(policy or {}),
            "value": dict(value or {}),
            "explorer": dict(parts.get("explorer") or {"type": "sample"}),
            "buffer": dict(parts.get("buffer") or {"type": "rollout"}),
            "intrinsic": [intrinsic] if isinstance(intrinsic, Mapping) else list(intrinsic),
            "normalize_observation": declared.get("observation"),
            "normalize_reward": declared.get("reward"),
        }
        return cls(spec)

    # -- assembly of parts -----------------------------------------------------------------------------------------
    def _build_normalizer(self, fields: Section) -> ObservationNormalizer:
        """Images are scaled by their encoder, so their leaves are skipped."""
        layout = self.spec["policy"].get("layout", "auto")
        images = image_leaves(self.observation_space, EncoderConfig(layout=layout))
        fields = {**fields, "skip": (*fields.get("skip", ()), *images)}
        return ObservationNormalizer(self.observation_space, **fields).to(self.device)

    def _build_learner(self, section: Section) -> Learner:
        kind = lookup("learner", section["type"])
        cfg = parse(kind.Config, _fields(section), "learner")
        minimize = Minimize(max_grad_norm=declared(cfg, "max_grad_norm"))
        return kind(self.model, cfg, minimize, self.streams.torch("minibatch")).to(self.device)

    def _build_buffer(self, section: Section) -> RolloutBuffer:
        kind = lookup("buffer", section["type"])
        fields = _fields(section)
        if kind is not RolloutBuffer:
            return kind(parse(kind.Config, fields, "agent.buffer"))
        size = declared(self.learner.cfg, "train_batch_size")
        if size is not None and fields.get("train_batch_size") not in (None, size):
            raise ConfigError(
                f"agent.buffer.train_batch_size={fields['train_batch_size']} contradicts "
                f"learner.train_batch_size={size}; set one of them.",
                path="agent.buffer.train_batch_size",
            )
        cfg = parse(RolloutBufferConfig, fields, "agent.buffer")
        return RolloutBuffer(replace(cfg, train_batch_size=size) if size is not None else cfg)

    def _build_bonus(self, section: Section, index: int) -> Any:
        kind = lookup("bonus", section["type"])
        cfg = parse(kind.Config, _fields(section), "agent.intrinsic")
        return kind(self.observation_space, cfg, self.streams.torch(f"bonus/{index}")).to(self.device)

    # -- the four verbs --------------------------------------------------------------------------------------------
    def forward(self, obs: Tree, state: Tree | None = None, is_first: Tensor | None = None) -> Output:
        """Distribution and value of a batch of raw observations `[N, …]`."""
        return self.model(obs, state, is_first)

    def act(
        self,
        obs: Tree,
        deterministic: bool = True,
        state: Tree | None = None,
        is_first: Any | None = None,
        action_mask: Any | None = None,
    ) -> Any:
        """The environment's own action for one observation or a batch of them.

        Args:
            obs: as the environment gives it, single (`observation_space.shape`) or batched `[N, …]`.
            deterministic: the mode of the policy instead of a sample.
            state: recurrent state; given (or with a recurrent policy), the result is `(action, state)`.
            is_first: whether the state must be reset before this observation.
            action_mask: legal actions, where the policy was trained with masks and `obs` does not hold them.

        Raises:
            ValueError: the observation does not fit the space, key by key.
        """
        if action_mask is not None:
            obs = (
                {**obs, "action_mask": action_mask}
                if isinstance(obs, dict)
                else {"obs": obs, "action_mask": action_mask}
            )
        tree, batched = self._to_batch(obs)
        count = len(tree_leaves(tree)[0])
        if state is None:
            state = self.actor.initial_state(count)
        first = (
            torch.zeros(count, dtype=torch.bool)
            if is_first is None
            else torch.as_tensor(is_first).reshape(count)
        )
        action, new_state = self.actor.pick(
            tree, state, first.to(self.device), deterministic, self.streams.torch("agent")
        )
        action = self.action_map(tree_map(lambda leaf: leaf.cpu().numpy(), action))
        if not batched:
            action = tree_map(lambda leaf: leaf[0], action)
        return action if new_state is None else (action, new_state)

    def observe(self, rollout: Rollout) -> Rollout:
        """Take in a chunk: gather statistics, store it, and return it with the weighted `bonus` where there is one."""
        if self.bonuses:
            total = sum(self._weighted(bonus, rollout) for bonus in self.bonuses)
            rollout = replace(rollout, rows=rollout.rows.replace(bonus=total))
        if self.normalizer is not None:
            self.normalizer.accumulate(rollout.rows.obs, rollout.rows.valid)
        if self.reward_scaler is not None:
            self._fit_scaler(rollout.B)
            self.reward_scaler.update(rollout.rows)
        self.buffer.add(rollout)
        return rollout

    def _fit_scaler(self, columns: int) -> None:
        """A return for each column: there are several to an environment where it has several agents."""
        assert self.reward_scaler is not None
        if len(self.reward_scaler.returns) != columns:
            self.reward_scaler.returns = self.reward_scaler.returns.new_zeros(columns)

    def _weighted(self, bonus: Any, rollout: Rollout) -> Tensor:
        return bonus.weight(self._progress) * bonus.bonus(rollout)

    def update(self, progress: float | None = None) -> Update:
        """One learner update on what the buffer gives; bonuses learn from the same rows.

        Args:
            progress: fraction of the run that is done, the clock of schedules.
        """
        if progress is not None:
            self._progress = progress
            self.learner.set_progress(progress)
        rollout = self.buffer.sample(self.streams.torch("buffer"))
        rows = rollout.rows
        discount = declared(self.learner.cfg, "gamma") * (~rows.terminated).to(rows.reward.dtype)
        update = self.learner.update(
            replace(rollout, rows=rows.replace(reward=self._reward(rows), discount=discount))
        )
        metrics = dict(update.metrics)
        for bonus in self.bonuses:
            metrics |= bonus.learn(rollout)
        return Update(metrics, update.priority)

    def _reward(self, rows: Any) -> Tensor:
        """What the learner is paid: the normalised reward plus the weighted bonus."""
        reward = rows.reward if self.reward_scaler is None else self.reward_scaler.scale(rows.reward)
        return reward + rows.bonus if "bonus" in rows else reward

    def reward_streams(self, rollout: Rollout) -> dict[str, Tensor]:
        """Rewards beside the raw one whose episode sums are logged: intrinsic, and total as the learner sees it."""
        if "bonus" not in rollout.rows:
            return {}
        return {"intrinsic_return": rollout.rows.bonus, "total_return": self._reward(rollout.rows)}

    def refresh(self) -> None:
        """Move the observation statistics to what was gathered since the last update; called before publishing."""
        if self.normalizer is not None:
            self.normalizer.merge()

    @property
    def actor(self) -> Actor:
        """What a sampler acts with: views of the live policy, statistics and explorer."""
        if self._actor is None:
            self._actor = Actor(self.model.policy.frozen(), self.explorer)
        return self._actor

    # -- state -----------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        return {
            "learner": self.learner.state_dict(),
            "explorer": self.explorer.state_dict(),
            "buffer": self.buffer.state_dict(),
            "bonuses": [bonus.state_dict() for bonus in self.bonuses],
            "reward_scaler": None if self.reward_scaler is None else self.reward_scaler.state_dict(),
            "progress": self._progress,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        self.explorer.load_state_dict(state["explorer"])
        self.buffer.load_state_dict(state["buffer"])
        for bonus, saved in zip(self.bonuses, state["bonuses"], strict=True):
            bonus.load_state_dict(saved)
        if self.reward_scaler is not None:
            self._fit_scaler(len(state["reward_scaler"]["returns"]))
            self.reward_scaler.load_state_dict(state["reward_scaler"])
        self._progress = state["progress"]

    def save(self, path: str | Path) -> Path:
        """Write the agent alone (no environment, no counters) as a checkpoint folder that `Agent.load` reads."""
        folder = Path(path)
        checkpoint.save(folder, {"agent": self.state_dict()}, {"agent": self.spec, "kind": "agent"})
        return folder

    @classmethod
    def load(cls, path: str | Path, device: str | None = None, trust: bool = False) -> Agent:
        """The agent of a run folder (its best checkpoint, else the newest) or of one checkpoint folder.

        Args:
            device: where to put it; None: where it was, if that exists here.
            trust: allow a checkpoint that names your own `module:Class` to import it.

        Raises:
            CheckpointError: nothing whole is there, or it needs `trust`.
        """
        folder = checkpoint.locate(Path(path))
        meta = checkpoint.read_meta(folder)
        spec = dict(meta["agent"])
        checkpoint.check_trust(spec, folder, trust)
        spec["device"] = device or (spec["device"] if _available(spec["device"]) else "cpu")
        state, _ = checkpoint.load(folder, only=("agent",))
        agent = cls(spec)
        agent.load_state_dict(state["agent"])
        return agent

    def export(self, path: str | Path, format: str = "onnx") -> Path:
        """Write the acting policy, normaliser and action scaling included, for use without this framework."""
        if format != "onnx":
            raise ValueError(f"export format {format!r} is unknown; this version writes 'onnx'.")
        from uniarena.export.onnx import export_onnx  # type: ignore[import-not-found,unused-ignore]

        return export_onnx(self, Path(path))

    # -- details -----------------------------------------------------------------------------------------------------
    def _to_batch(self, obs: Tree) -> tuple[Tree, bool]:
        """Tensors `[N, …]` on the agent's device, and whether the observation was batched."""
        paths = dict(_space_shapes(self.observation_space))
        from uniarena.batch import tree_paths

        given = dict(tree_paths(obs))
        if set(paths) != set(given):
            odd = sorted(set(paths) ^ set(given))
            raise ValueError(
                f"observation keys differ from the agent's space: {', '.join(odd) or 'a dict where none is due'}."
            )
        extra = {np.ndim(given[key]) - len(shape) for key, shape in paths.items()}
        if extra not in ({0}, {1}):
            key, shape = next((k, s) for k, s in paths.items())
            raise ValueError(
                f"observation {key or 'array'} has shape {np.shape(given[key])}; expected {shape} or (N, *{shape})."
            )
        batched = extra == {1}

        def convert(leaf: Any) -> Tensor:
            tensor = torch.as_tensor(
                np.asarray(leaf) if not isinstance(leaf, Tensor) else leaf, device=self.device
            )
            tensor = tensor.float() if tensor.dtype == torch.float64 else tensor
            return tensor if batched else tensor.unsqueeze(0)

        return tree_map(convert, obs), batched


def _space_shapes(space: Any, prefix: str = "") -> Sequence[tuple[str, tuple[int, ...]]]:
    inner = getattr(space, "spaces", None)
    if inner is None:
        return [(prefix, tuple(space.shape))]
    entries = inner.items() if isinstance(inner, Mapping) else enumerate(inner)
    return [p for key, sub in entries for p in _space_shapes(sub, f"{prefix}.{key}" if prefix else str(key))]


def _available(device: str) -> bool:
    return device == "cpu" or (device.startswith("cuda") and torch.cuda.is_available())


def _saved(value: Any) -> Any:
    """A spec as checkpoints keep it: classes given from Python by their import paths."""
    if isinstance(value, Mapping):
        return {key: _saved(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_saved(entry) for entry in value]
    return import_path(value) if callable(value) else value


def _fields(section: Section) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key != "type"}


def _build(kind: str, section: Section, path: str) -> Any:
    component = lookup(kind, section["type"])
    return component(parse(component.Config, _fields(section), path))
