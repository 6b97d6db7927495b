import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fakes.envs import IsaacCounter, TensorCounter
from uniarena.config import ConfigError
from uniarena.envs import TensorEnvs, UniArenaNotice, make_env


def _sim(**options: Any) -> TensorCounter:
    return TensorCounter(**{"final": "dense", **options})


def _zeros(env: Any) -> torch.Tensor:
    return torch.zeros(env.num_envs, 1)


def test_nothing_is_copied() -> None:
    sim = _sim(num_envs=4096, lengths=(3,))
    env = make_env(sim)
    assert env.reset().data_ptr() == sim.obs_buf.data_ptr()
    for _ in range(5):
        step = env.step(_zeros(env))
        assert step.obs.data_ptr() == sim.obs_buf.data_ptr()
        assert step.next_obs.data_ptr() == sim.info["next_obs"].data_ptr()  # type: ignore[attr-defined, union-attr]
        assert step.reward.data_ptr() == sim.reward_buf.data_ptr()  # type: ignore[attr-defined]


def test_unclipped_actions_reach_the_simulator_as_they_are() -> None:
    class Unbounded(TensorCounter):
        def __init__(self) -> None:
            super().__init__(final="dense")
            self.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

        def step(self, action: torch.Tensor) -> Any:
            self.seen = action
            return super().step(action)

    env = make_env(Unbounded())
    env.reset()
    action = _zeros(env)
    env.step(action)
    assert env.get_attr("seen")[0].data_ptr() == action.data_ptr()


class _NoWait(TorchDispatchMode):
    """Fails on operations that would make a GPU wait."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        assert not any(word in name for word in ("_local_scalar_dense", "nonzero", "is_nonzero")), name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("final", [None, "info", "dense"])
@pytest.mark.filterwarnings("ignore::uniarena.envs.UniArenaNotice")
def test_a_step_never_waits_for_the_device(final: Any) -> None:
    class Smooth(TensorCounter):  # indexing by a mask, as the fake does, would wait by itself
        def step(self, action: torch.Tensor) -> Any:
            self.t += 1
            true_next = self.t.float()[:, None]
            done = self.t >= self.lengths
            self.t *= ~done
            info = {"info": {"final_obs": true_next}, "dense": {"next_obs": true_next}, None: {}}[self.final]
            return self.t.float()[:, None], torch.ones_like(done).float(), done, torch.zeros_like(done), info

    env = make_env(Smooth(final=final))
    env.reset()
    with _NoWait():
        for _ in range(6):
            env.step(_zeros(env))


def test_time_outs_of_the_four_value_form() -> None:
    for end in ("termination", "truncation"):
        env = make_env(IsaacCounter(2, (1, 2), end, "info"))
        env.reset()
        step = env.step(_zeros(env))
        assert step.truncated.tolist() == [end == "truncation", False]
        assert step.terminated.tolist() == [end == "termination", False]
        assert step.is_first.tolist() == [True, False] and step.final is None


def test_without_final_observations_it_is_said_once_per_environment() -> None:  # case B95
    with pytest.warns(UniArenaNotice, match="advantage 0") as said:
        env = make_env(TensorCounter(2, (1, 2)))
    assert len(said) == 1 and not env.has_final_obs
    env.reset()
    assert env.step(_zeros(env)).next_obs is None


def test_a_declaration_spares_the_probing_step() -> None:
    class Declared(TensorCounter):
        has_final_obs = False
        steps = 0

        def step(self, action: torch.Tensor) -> Any:
            self.steps += 1
            return super().step(action)

    with pytest.warns(UniArenaNotice):
        env = make_env(Declared())
    assert env.get_attr("steps") == [0]


def test_final_observations_that_come_only_at_an_end() -> None:
    class AtEnd(TensorCounter):
        has_final_obs = True

        def step(self, action: torch.Tensor) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, terminated, truncated, info if bool((terminated | truncated).any()) else {}

    env = make_env(AtEnd(2, (2, 3), final="info"))
    env.reset()
    rows = [env.step(_zeros(env)).next_obs.flatten().tolist() for _ in range(3)]  # type: ignore[union-attr]
    assert rows == [[1.0, 1.0], [2.0, 2.0], [1.0, 3.0]]


def test_spaces_by_numbers_and_by_their_single_name() -> None:
    class Bare(TensorCounter):
        num_obs, num_actions = 1, 1

        def __init__(self) -> None:
            super().__init__(final="dense")
            del self.observation_space, self.action_space

    env = make_env(Bare())
    assert env.observation_space == spaces.Box(-np.inf, np.inf, (1,)) and env.action_space.shape == (1,)

    class Single(Bare):
        single_observation_space = spaces.Box(0, 5, (1,))

    assert make_env(Single()).observation_space == Single.single_observation_space

    class Neither(Bare):
        num_actions = None  # type: ignore[assignment]

    with pytest.raises(ConfigError, match="no action_space"):
        make_env(Neither())


def test_dict_observations_need_a_dict_space_or_a_policy_part() -> None:
    class Groups(TensorCounter):
        def reset(self, seed: int | None = None) -> Any:
            return {"critic": super().reset()[0], "image": None}, {}

    with pytest.raises(ConfigError, match="its space is no Dict"):
        make_env(Groups(final="dense"))


def test_float64_becomes_float32() -> None:
    class Double(TensorCounter):
        def step(self, action: torch.Tensor) -> Any:
            obs, reward, *rest = super().step(action)
            return obs.double(), reward.double(), *rest

    env = make_env(Double(final="dense"))
    env.reset()
    step = env.step(_zeros(env))
    assert step.obs.dtype == torch.float32 and step.reward.dtype == torch.float32


@pytest.mark.parametrize("kind", ["mask", "env_ids"])
def test_partial_reset_where_the_simulator_can(kind: str) -> None:
    class ByMask(TensorCounter):
        def reset(self, seed: int | None = None, mask: Any = None) -> Any:
            self.t[... if mask is None else mask] = 0
            return self.t.float()[:, None]

    class ByIds(TensorCounter):
        def reset(self, seed: int | None = None, env_ids: Any = None) -> Any:
            self.t[... if env_ids is None else env_ids] = 0
            return self.t.float()[:, None]

    env = make_env((ByMask if kind == "mask" else ByIds)(3, (9,), final="dense"))
    env.reset()
    env.step(_zeros(env))
    assert env.partial_reset  # type: ignore[attr-defined]
    assert env.reset(mask=torch.tensor([True, False, False])).flatten().tolist() == [0.0, 1.0, 1.0]
    plain = make_env(_sim())
    with pytest.raises(ValueError, match="mask"):
        plain.reset(mask=torch.ones(4, dtype=torch.bool))


def test_metrics_become_tensors() -> None:
    class Metrics(TensorCounter):
        def step(self, action: torch.Tensor) -> Any:
            *rest, info = super().step(action)
            return (
                *rest,
                {**info, "metrics": {"t": self.t, "mean": self.t.float().mean()}, "is_success": self.t > 1},
            )

    env = make_env(Metrics(2, (9,), final="dense"))
    env.reset()
    info = env.step(_zeros(env)).info
    assert {key: value.tolist() for key, value in info.items()} == {
        "metrics/t": [1.0, 1.0],
        "metrics/mean": [1.0, 1.0],
        "is_success": [0.0, 0.0],
    }


def test_a_class_gets_the_number_of_environments() -> None:
    env = make_env(TensorCounter, 16, kwargs={"final": "dense"})
    assert isinstance(env, TensorEnvs) and env.num_envs == 16 and env.env_id == "TensorCounter"
    env.close(), env.close()
    with pytest.raises(ConfigError, match="max_episode_steps"):
        make_env(TensorCounter, 16, kwargs={"final": "dense"}, max_episode_steps=3)


def test_native_state_by_the_simulators_own_words() -> None:
    one, other = make_env(_sim()), make_env(_sim())
    assert one.state_dict() is None  # before the first reset there is nothing to continue
    one.reset()
    for _ in range(3):
        one.step(_zeros(one))
    state = one.state_dict()
    assert state is not None
    one.step(_zeros(one))
    other.load_state_dict(state)
    assert torch.equal(other.step(_zeros(other)).obs, torch.tensor([[0.0], [0.0], [1.0], [4.0]]))


def test_native_state_of_a_plain_simulator() -> None:
    class Plain(TensorCounter):
        state_dict = None  # type: ignore[assignment]
        load_state_dict = None  # type: ignore[assignment]

        def __init__(self) -> None:
            super().__init__(final="dense")
            self.generator = torch.Generator()

        def step(self, action: torch.Tensor) -> Any:
            obs, _, *rest = super().step(action)
            return obs, torch.rand(self.num_envs, generator=self.generator), *rest

    one, other = make_env(Plain()), make_env(Plain())
    one.reset(), other.reset()
    for _ in range(3):
        one.step(_zeros(one))
    state = one.state_dict()
    assert state is not None
    other.load_state_dict(state)
    for _ in range(5):
        a, b = one.step(_zeros(one)), other.step(_zeros(other))
        assert torch.equal(a.obs, b.obs) and torch.equal(a.reward, b.reward)


@pytest.mark.slow
@pytest.mark.extra("jax")
@pytest.mark.filterwarnings("ignore")
def test_jax_arrays_share_their_memory() -> None:
    import jax.numpy as jnp

    class JaxCounter:
        num_envs, device = 3, "cpu"
        observation_space = spaces.Box(0, np.inf, (1,), np.float32)
        action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

        def reset(self) -> Any:
            self.t = jnp.zeros((3, 1))
            return self.t

        def step(self, action: Any) -> Any:
            assert isinstance(action, jnp.ndarray) and action.shape == (3, 1)
            self.got = action
            self.t = self.t + action
            done = self.t[:, 0] >= 3
            last = self.t
            self.t = jnp.where(done[:, None], 0.0, self.t)
            return self.t, jnp.ones(3), done, jnp.zeros(3, bool), {"final_obs": last}

    env = make_env(JaxCounter())
    env.reset()
    action = torch.ones(3, 1)
    for _ in range(3):
        step = env.step(action)
        sim = env.get_attr("t")[0]
        assert step.obs.data_ptr() == sim.unsafe_buffer_pointer()
        assert env.get_attr("got")[0].unsafe_buffer_pointer() == action.data_ptr()
    assert step.terminated.tolist() == [True] * 3 and step.next_obs.flatten().tolist() == [3.0] * 3  # type: ignore[union-attr]


def test_notices_are_warnings_of_our_own_kind() -> None:
    assert issubclass(UniArenaNotice, UserWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UniArenaNotice)
        make_env(TensorCounter())
