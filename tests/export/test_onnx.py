"""The exported file acts like the agent: normaliser, network, head and action map inside, for any batch size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces

from tests.fakes.envs import ContinuousTargetEnv, MaskObsEnv, NestedObsEnv, SpaceEnv
from uniarena import Agent, make_env
from uniarena.batch import tree_leaves, tree_paths

pytestmark = pytest.mark.extra("onnx")

VECTOR = spaces.Box(-5.0, 5.0, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)


def some_are_slow(kinds: dict[str, Any], *quick: str) -> list[Any]:
    """Each export takes a second: the fast tests try a few."""
    return [pytest.param(kind, marks=() if kind in quick else pytest.mark.slow) for kind in kinds]


def agent_for(
    observation: Space[Any],
    action: Space[Any],
    wrappers: tuple[Any, ...] = (),
    policy: dict[str, Any] | None = None,
) -> Agent:
    env = make_env(lambda: SpaceEnv(observation, action), 2, wrappers=wrappers)
    return settled(Agent.assemble(env, policy=policy or {}))


def settled(agent: Agent) -> Agent:
    """Give the networks weights that matter and the normaliser statistics that are not those of the beginning."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in agent.model.policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    if agent.normalizer is not None:
        rows = batch_of(agent.observation_space, 50)
        agent.normalizer.accumulate(rows, torch.ones(50, dtype=torch.bool))
        agent.normalizer.merge()
    return agent


def batch_of(space: Space[Any], count: int, seed: int = 3) -> Any:
    space.seed(seed)
    samples = [space.sample() for _ in range(count)]

    def stack(parts: list[Any]) -> Any:
        if isinstance(parts[0], dict):
            return {key: stack([part[key] for part in parts]) for key in parts[0]}
        if isinstance(parts[0], tuple):
            return tuple(stack(list(column)) for column in zip(*parts, strict=True))
        return torch.as_tensor(np.stack([np.asarray(part) for part in parts]))

    return stack(samples)


def run(file: Path, obs: Any) -> list[np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    arrays = {key or "obs": np.asarray(leaf) for key, leaf in tree_paths(obs)}
    assert set(arrays) == {entry.name for entry in session.get_inputs()}
    floats = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in arrays.items()}
    return session.run(None, floats)


def assert_same(agent: Agent, file: Path, count: int = 11) -> list[np.ndarray]:
    obs = batch_of(agent.observation_space, count)
    found, expected = run(file, obs), tree_leaves(agent.act(obs, deterministic=True))
    assert len(found) == len(expected)
    for ours, theirs in zip(expected, found, strict=True):
        assert theirs.shape == ours.shape
        assert theirs.dtype == ours.dtype
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5)
    return found


ACTIONS = {
    "discrete": spaces.Discrete(5),
    "discrete from a start": spaces.Discrete(3, start=-1),
    "multi-discrete": spaces.MultiDiscrete([2, 3, 4]),
    "multi-binary": spaces.MultiBinary(3),
    "box": spaces.Box(-0.2, 0.3, (2,), np.float32),
    "unbounded box": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "float64 box": spaces.Box(-2.0, 2.0, (1,), np.float64),
    "dict": spaces.Dict(
        {"gear": spaces.Discrete(3, start=1), "wheel": spaces.Box(-1.0, 1.0, (2,), np.float32)}
    ),
}


@pytest.mark.parametrize("kind", some_are_slow(ACTIONS, "discrete from a start", "multi-discrete", "box"))
def test_every_action_space_comes_out_as_the_environment_takes_it(kind: str, tmp_path: Path) -> None:
    agent = agent_for(VECTOR, ACTIONS[kind])
    found = assert_same(agent, agent.export(tmp_path / "policy.onnx"))
    assert any(np.ptp(leaf) > 0 for leaf in found)  # not one and the same action everywhere


OBSERVATIONS = {
    "vector": VECTOR,
    "matrix in float64": spaces.Box(-1.0, 1.0, (3, 2), np.float64),
    "discrete": spaces.Discrete(6, start=2),
    "image": IMAGE,
    "dict": spaces.Dict({"cam": IMAGE, "pos": VECTOR, "task": spaces.Discrete(4)}),
    "tuple": spaces.Tuple((VECTOR, spaces.MultiDiscrete([3, 2]))),
}


@pytest.mark.parametrize("kind", some_are_slow(OBSERVATIONS, "dict"))
def test_every_observation_space_goes_in_as_the_environment_gives_it(kind: str, tmp_path: Path) -> None:
    agent = agent_for(OBSERVATIONS[kind], spaces.Box(-1.0, 1.0, (2,), np.float32))
    assert_same(agent, agent.export(tmp_path / "policy.onnx"))


@pytest.mark.parametrize(
    "distribution",
    some_are_slow(dict.fromkeys(("gaussian", "squashed_gaussian", "beta")), "squashed_gaussian"),
)
def test_normaliser_head_and_rescaling_are_inside(distribution: str, tmp_path: Path) -> None:
    box = spaces.Box(np.array([-3.0, 0.0], np.float32), np.array([1.0, 0.5], np.float32))
    agent = agent_for(
        VECTOR,
        box,
        ("normalize_observation", "rescale_action"),
        {"distribution": distribution, "hidden_sizes": [16]},
    )
    (found,) = assert_same(agent, agent.export(tmp_path / "policy.onnx"))
    assert (found >= box.low).all() and (found <= box.high).all()
    untouched = agent_for(
        VECTOR, box, ("rescale_action",), {"distribution": distribution, "hidden_sizes": [16]}
    )
    assert np.abs(untouched.act(batch_of(VECTOR, 11)) - found).max() > 1e-3  # the statistics matter


@pytest.mark.slow
def test_the_state_dependent_noise_of_training_is_left_out(tmp_path: Path) -> None:
    agent = agent_for(VECTOR, spaces.Box(-1.0, 1.0, (2,), np.float32), policy={"gsde": True})
    assert_same(agent, agent.export(tmp_path / "policy.onnx"))


@pytest.mark.slow
def test_a_nature_cnn_on_a_nested_observation(tmp_path: Path) -> None:  # case B20
    agent = settled(Agent.assemble(make_env(NestedObsEnv, 2, wrappers=["normalize_observation"])))
    file = agent.export(tmp_path / "policy.onnx")
    assert_same(agent, file)
    import onnxruntime

    names = {entry.name for entry in onnxruntime.InferenceSession(str(file)).get_inputs()}
    assert names == {key for key, _ in tree_paths(batch_of(agent.observation_space, 1))}


def test_an_action_mask_is_an_input_and_is_obeyed(tmp_path: Path) -> None:
    agent = settled(Agent.assemble(make_env(MaskObsEnv, 2)))
    file = agent.export(tmp_path / "policy.onnx")
    for action in range(3):
        mask = np.eye(3, dtype=np.int8)[[action] * 4]
        obs = {"observation": np.zeros((4, 1), np.float32), "action_mask": mask}
        obs = {key: torch.as_tensor(leaf) for key, leaf in obs.items()}
        assert run(file, obs)[0].tolist() == [action] * 4


@pytest.mark.slow
def test_one_observation_and_many_go_through_the_same_file(tmp_path: Path) -> None:
    agent = agent_for(VECTOR, spaces.Discrete(4))
    file = agent.export(tmp_path / "policy.onnx")
    obs = batch_of(VECTOR, 100)
    together = run(file, obs)[0]
    assert [run(file, obs[i : i + 1])[0][0] for i in (0, 7, 99)] == [together[i] for i in (0, 7, 99)]


def test_exporting_leaves_the_agent_as_it_was(tmp_path: Path) -> None:
    agent = settled(Agent.assemble(make_env(ContinuousTargetEnv, 1, wrappers=["normalize_observation"])))
    obs = batch_of(agent.observation_space, 5)
    before, mode = agent.act(obs), agent.model.training
    state = {key: value.clone() for key, value in agent.model.state_dict().items()}
    agent.export(tmp_path / "deep" / "policy.onnx")
    assert np.array_equal(agent.act(obs), before)
    assert agent.model.training == mode
    assert all(torch.equal(value, state[key]) for key, value in agent.model.state_dict().items())


@pytest.mark.slow
def test_a_file_that_acts_differently_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from uniarena.export import onnx

    agent = agent_for(VECTOR, spaces.Box(-1.0, 1.0, (2,), np.float32))
    act = agent.act
    monkeypatch.setattr(agent, "act", lambda obs, **options: act(obs, **options) + 1e-4)
    with pytest.raises(onnx.ExportError, match="differs from Python"):
        agent.export(tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []
