"""The agent: model, explorer, learner, buffer and normalisers in one container; any part can be exchanged by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from uniarena import checkpoint
from uniarena.batch import Batch, Rollout, Tree, tree_leaves, tree_map
from uniarena.buffers.demonstrations import with_demonstrations
from uniarena.buffers.frames import find_stacks
from uniarena.buffers.her import goal_reward_of
from uniarena.buffers.rollout import RolloutBuffer, RolloutBufferConfig, refuse_other_regime
from uniarena.buffers.spec import BufferSpec, stored_state
from uniarena.buffers.statistics import fit_to_data
from uniarena.config import ConfigError, brought_parts, parse
from uniarena.config.dump import without_secrets
from uniarena.config.section import left_out
from uniarena.envs.actions import ActionMap
from uniarena.envs.observations import as_batch
from uniarena.envs.protocol import Env
from uniarena.envs.spaces import space_from_json, space_to_json
from uniarena.explorers.actor import Actor
from uniarena.explorers.base import Explorer
from uniarena.explorers.bonuses.sampled import learned, refuse_rollouts_only, rewarded, taken_in
from uniarena.learners.base import Learner, Update, declared
from uniarena.learners.regularizers.terms import regularize
from uniarena.nets.encoders import EncoderConfig, image_leaves
from uniarena.nets.normalizer import ObservationNormalizer, RewardScaler
from uniarena.optim import Minimize, build_precision
from uniarena.registry import by_import_path, lookup
from uniarena.seeding import Streams
from uniarena.values.memory_model import as_argument
from uniarena.values.model import Output

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

    def __init__(self, spec: dict[str, Any], env: Env | None = None) -> None:
        """Build every part that `spec` names; `env` is what a replay buffer asks about frames and goals."""
        self.spec = self._given = spec
        self.observation_space = space_from_json(spec["observation_space"])
        self.action_map = ActionMap.from_json(spec["action_map"])
        self.device = torch.device(spec["device"])
        self.streams = Streams(spec["seed"])
        norm = spec["normalize_observation"]
        self.normalizer = None if norm is None else self._build_normalizer(norm)
        self.learner = self._build_learner(self.streams)
        self.model = self.learner.model
        self.explorer = self._build_explorer(spec["explorer"])
        self.buffer = self._build_buffer(spec["buffer"], env)
        self.bonuses = self._build_bonuses(self.streams)
        gamma, scale = declared(self.learner.cfg, "gamma"), spec["normalize_reward"]
        options = None if scale is None else {"gamma": gamma, **scale}
        self.reward_scaler = None if options is None else RewardScaler(spec["columns"], **options)
        self._actor: Actor | None = None
        self._progress = 0.0
        fit_to_data(self.buffer, self.normalizer, self.reward_scaler)
        self.spec = without_secrets(by_import_path(spec))

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
            learner: registered name, class, or the YAML section `learner` as a mapping, `regularizers` too.
            policy, value: the sections `agent.policy` and `agent.value`; value inherits what it does not set.
            parts: further sections of `agent`: `explorer`, `buffer`, `memory`, `intrinsic`.
            device: where the networks live.

        Raises:
            ConfigError: an unknown name or field, or an impossible combination.
        """
        parts = dict(parts or {})
        if odd := set(parts) - {"explorer", "buffer", "memory", "intrinsic"}:
            raise ConfigError(f"Agent.assemble(parts=…) does not know {', '.join(sorted(odd))}", path="agent")
        intrinsic = parts.get("intrinsic") or []
        section = dict(learner) if isinstance(learner, Mapping) else {"type": learner}
        terms = section.pop("regularizers", None)
        brought = brought_parts(lookup("learner", section["type"]), parts.get("memory"))
        norm = getattr(env, "normalization", {})
        spec = {
            "observation_space": space_to_json(env.observation_space),
            "action_map": env.action_map.to_json(),
            "columns": env.num_envs,
            "seed": seed,
            "device": device,
            "learner": section,
            "policy": dict(policy or {}),
            "value": dict(value or {}),
            "explorer": _or_brought(parts.get("explorer"), brought["explorer"]),
            "buffer": _or_brought(parts.get("buffer"), brought["buffer"]),
            "memory": dict(parts.get("memory") or {}),
            "intrinsic": [intrinsic] if isinstance(intrinsic, Mapping) else list(intrinsic),
            "normalize_observation": norm.get("observation"),
            "normalize_reward": norm.get("reward"),
        }
        return regularize(cls(spec, env), terms)

    # -- assembly of parts -----------------------------------------------------------------------------------------
    def _build_normalizer(self, fields: Section) -> ObservationNormalizer:
        """Images are scaled by their encoder, so their leaves are skipped."""
        layout = self.spec["policy"].get("layout", "auto")
        images = image_leaves(self.observation_space, EncoderConfig(layout=layout))
        fields = {**fields, "skip": (*fields.get("skip", ()), *images)}
        return ObservationNormalizer(self.observation_space, **fields).to(self.device)

    def _build_learner(self, streams: Streams) -> Learner:
        section = self._given["learner"]
        kind = lookup("learner", section["type"])
        cfg = parse(kind.Config, _fields(section), "learner")
        spaces = (self.observation_space, self.action_map.policy_space)
        sections = (self._given["policy"], self._given["value"])
        # checkpoints of before say nothing of memory
        memory = as_argument(self._given.get("memory"), kind.build_model, section["type"])
        model = kind.build_model(*spaces, *sections, self.normalizer, streams, cfg=cfg, **memory).to(
            self.device
        )
        precision = build_precision(declared(cfg, "precision"), self.device.type)
        minimize = Minimize(declared(cfg, "max_grad_norm"), precision)
        return kind(model, cfg, minimize, streams.torch("minibatch")).to(self.device)

    def _build_explorer(self, section: Section) -> Explorer:
        kind = lookup("explorer", section["type"])
        cfg = parse(kind.Config, _fields(section), "agent.explorer")
        acts = not getattr(lookup("buffer", self.spec["buffer"]["type"]), "fixed", False)
        warmup = getattr(self.learner.cfg, "learning_starts", 0) if acts else 0
        explorer: Explorer = kind(cfg, self.action_map.policy_space, warmup)
        if "log_prob" in self.learner.records and not (explorer.has_log_prob and explorer.warmup == 0):
            raise ConfigError(
                f"{self.spec['learner']['type']} must know the log-probs of what was done, which {section['type']} "
                "(with its warm-up) cannot give.",
                path="agent.explorer.type",
                hint="leave agent.explorer out: the learner brings its own.",
            )
        return explorer

    def _build_buffer(self, section: Section, env: Env | None) -> Any:
        kind = lookup("buffer", section["type"])
        fields = _fields(section)
        refuse_other_regime(kind, self.learner.cfg, self._given["learner"]["type"])
        if kind is not RolloutBuffer:
            for bonus in self.spec["intrinsic"]:
                refuse_rollouts_only(lookup("bonus", bonus["type"]), section["type"])
            return None if env is None else self._build_replay(kind, fields, env)
        size = declared(self.learner.cfg, "train_batch_size")
        if size is not None and fields.get("train_batch_size") not in (None, size):
            raise ConfigError(
                f"agent.buffer.train_batch_size={fields['train_batch_size']} contradicts "
                f"learner.train_batch_size={size}; set one of them.",
                path="agent.buffer.train_batch_size",
            )
        cfg = parse(RolloutBufferConfig, fields, "agent.buffer")
        return RolloutBuffer(replace(cfg, train_batch_size=size) if size is not None else cfg)

    def _build_replay(self, kind: Any, fields: Section, env: Env) -> Any:
        cfg = self.learner.cfg
        spec = BufferSpec(
            self.observation_space,
            self.action_map.policy_space,
            columns=self.spec["columns"],
            gamma=declared(cfg, "gamma"),
            batch_size=declared(cfg, "batch_size"),
            device=self.device,
            n_step=getattr(cfg, "n_step", 1),
            stacks=find_stacks(env),
            goal_reward=goal_reward_of(env) if fields.get("her") is not None else None,
            successors=bool(self.spec["intrinsic"]),
            extra=stored_state(self.model.initial_state(1), kind, "state" in self.learner.records),
            action_space=self.action_map.env_space,
            asked=self.learner.records,
        )
        return with_demonstrations(kind(parse(kind.Config, fields, "agent.buffer"), spec))

    def _build_bonuses(self, streams: Streams) -> list[Any]:
        found = []
        spaces = (self.observation_space, self.action_map.policy_space)
        for index, section in enumerate(self._given["intrinsic"]):
            kind = lookup("bonus", section["type"])
            cfg = parse(kind.Config, _fields(section), "agent.intrinsic")
            bonus = kind(*spaces, cfg, streams.torch(f"bonus/{index}"))
            bound = self.learner.minimize.max_grad_norm
            if isinstance(bound, Mapping) and hasattr(bonus, "minimize"):
                bonus.minimize.max_grad_norm = bound.get("intrinsic")
            found.append(bonus.to(self.device))
        return found

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
            obs = {**(obs if isinstance(obs, dict) else {"obs": obs}), "action_mask": action_mask}
        tree, batched = as_batch(self.observation_space, obs, self.device)
        count = len(tree_leaves(tree)[0])
        if state is None:
            state = self.actor.initial_state(count)
        first = torch.zeros(count, dtype=torch.bool) if is_first is None else torch.as_tensor(is_first)
        action, new_state = self.actor.pick(
            tree, state, first.reshape(count).to(self.device), deterministic, self.streams.torch("agent")
        )
        action = self.action_map(tree_map(lambda leaf: leaf.cpu().numpy(), action))
        if not batched:
            action = tree_map(lambda leaf: leaf[0], action)
        return action if new_state is None else (action, new_state)

    def observe(self, rollout: Rollout) -> Rollout:
        """Take in a chunk: gather statistics, store it, return it with the weighted `bonus` (replay: at updates)."""
        paid = isinstance(self.buffer, RolloutBuffer)
        rollout = taken_in(rollout, self.bonuses, self._progress, paid)
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

    def update(self, progress: float | None = None) -> Update:
        """One learner update on what the buffer gives; bonuses learn from the same rows.

        Args:
            progress: fraction of the run that is done, the clock of schedules.
        """
        if progress is not None:
            self._progress = progress
            self.learner.set_progress(progress)
            if hasattr(self.buffer, "set_progress"):
                self.buffer.set_progress(progress)
        sample, gamma = self.buffer.sample(self.streams.torch("buffer")), declared(self.learner.cfg, "gamma")
        rollout, rows = rewarded(sample, self.bonuses, self._progress, gamma)
        self.learner.minimize.left_out = False
        update = self.learner.update(self._paid(rollout))
        if update.priority is not None and not self.learner.minimize.left_out:
            self.buffer.reprioritise(rollout.index, update.priority)
        if not self.bonuses:
            return update
        names = [section["type"] for section in self.spec["intrinsic"]]
        return Update({**update.metrics, **learned(names, self.bonuses, rows)}, update.priority)

    def _paid(self, sample: Rollout | Batch) -> Rollout | Batch:
        """What the learner gets: a copy with the reward it is paid, and on rollouts the discount of each row."""
        if isinstance(sample, Batch):
            asis = self.reward_scaler is None and "bonus" not in sample
            return sample if asis else sample.replace(reward=self._reward(sample))
        rows = sample.rows
        discount = declared(self.learner.cfg, "gamma") * (~rows.terminated).to(rows.reward.dtype)
        return replace(sample, rows=rows.replace(reward=self._reward(rows), discount=discount))

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
            "clock": {"env_steps": self.explorer.env_steps, "progress": self.explorer.progress},
            "bonuses": [bonus.state_dict() for bonus in self.bonuses],
            "reward_scaler": None if self.reward_scaler is None else self.reward_scaler.state_dict(),
            "progress": self._progress,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        self.explorer.load_state_dict(state["explorer"])
        self.explorer.set_clock(
            **state.get("clock", {"env_steps": 0, "progress": 0.0})
        )  # none in older checkpoints
        for bonus, saved in zip(self.bonuses, state["bonuses"], strict=True):
            bonus.load_state_dict(saved)
        if self.reward_scaler is not None:
            self._fit_scaler(len(state["reward_scaler"]["returns"]))
            self.reward_scaler.load_state_dict(state["reward_scaler"])
        self._progress = state["progress"]

    def save(self, path: str | Path) -> Path:
        """Write the agent alone (no environment, no counters) as a checkpoint folder that `Agent.load` reads."""
        return checkpoint.save(path, {"agent": self.state_dict()}, {"agent": self.spec, "kind": "agent"})

    @classmethod
    def load(cls, path: str | Path, device: str | None = None, trust: bool = False) -> Agent:
        """The agent of a run folder (its best checkpoint, else the newest) or of one checkpoint folder.

        Args:
            device: where to put it; None: where it was, if that exists here.
            trust: allow a checkpoint that names your own `module:Class` to import it.

        Raises:
            CheckpointError: nothing whole is there, it needs `trust`, or it holds no agent that can be built.
        """
        folder = checkpoint.locate(Path(path))
        state, meta = checkpoint.load(folder, only=("agent",))
        with checkpoint.rebuilding(folder, "holds no agent that can be built here", state):
            spec = dict(meta["agent"])
            checkpoint.check_trust(spec, folder, trust)
            if lacking := left_out(spec, "agent"):
                reason = f"was saved without the secret {lacking}; assemble the agent with it and use agent.init_from."
                raise checkpoint.CheckpointError(folder, reason)
            there = spec["device"].startswith("cuda") and torch.cuda.is_available()
            spec["device"] = device or (spec["device"] if there else "cpu")
            agent = cls(spec)
            agent.load_state_dict(state["agent"])
        return agent

    def export(self, path: str | Path, format: str = "onnx") -> Path:
        """Write the acting policy, normaliser and action scaling included, for use without this framework."""
        if format != "onnx":
            raise ValueError(f"export format {format!r} is unknown; this version writes 'onnx'.")
        from uniarena.export.onnx import export_onnx  # type: ignore[import-not-found,unused-ignore]

        return export_onnx(self, Path(path))


def rebuilt(agent: Agent, streams: Streams) -> tuple[Learner, list[Any]]:
    """The agent's learner and bonuses made again, with first weights from other `streams`; the agent keeps its own."""
    return agent._build_learner(streams), agent._build_bonuses(streams)


def _or_brought(given: Section | None, brought: Section) -> dict[str, Any]:
    """What was given; where it names no type, it refines what the learner brings."""
    return dict(given) if given and "type" in given else {**brought, **(given or {})}


def _fields(section: Section) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key != "type"}
