from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from tests.fakes.envs import (
    CounterEnv,
    MaskInfoEnv,
    MaskObsEnv,
    MultiDiscreteMaskEnv,
    NestedObsEnv,
    TensorCounter,
)
from uniarena.config import ConfigError
from uniarena.envs import ActionMaskError, make_env

MODES = [mode.value for mode in AutoresetMode]
LENGTHS = (1, 2, 4)
FORMS: dict[str, Any] = {
    "serial": lambda cls: make_env([lambda n=n: cls(n) for n in LENGTHS]),
    "sync": lambda cls: make_env([lambda n=n: cls(n) for n in LENGTHS], vectorization="sync"),
    "async": lambda cls: make_env([lambda n=n: cls(n) for n in LENGTHS], vectorization="async"),
    **{
        f"given_{kind.__name__}_{mode}": lambda cls, kind=kind, mode=mode: make_env(
            kind([lambda n=n: cls(n) for n in LENGTHS], autoreset_mode=mode)
        )
        for mode in MODES
        for kind in (SyncVectorEnv, AsyncVectorEnv)
    },
}


@pytest.mark.parametrize("cls", [MaskInfoEnv, MaskObsEnv])
@pytest.mark.parametrize("form", FORMS)
def test_masks_travel_with_the_observation_in_every_form(form: str, cls: type) -> None:
    env = FORMS[form](cls)
    try:
        assert env.observation_space["action_mask"] == spaces.MultiBinary(3)
        count_key = "obs" if cls is MaskInfoEnv else "observation"
        obs = env.reset(seed=0)
        idle = np.zeros(3, bool)
        for _ in range(15):
            mask, count = obs["action_mask"], obs[count_key][:, 0].astype(int)
            assert mask.dtype == np.int8 and list(obs) == [count_key, "action_mask"]
            expected = np.arange(3) == (count % 3)[:, None]
            assert np.array_equal(mask[~idle], expected[~idle]) and mask[idle].all()
            step = env.step(np.where(idle, 0, count % 3))  # the env raises on a masked action
            if step.final is not None:
                assert step.final.obs["action_mask"].all()
                assert step.final.obs[count_key][:, 0].tolist() == [LENGTHS[b] for b in step.final.index]
            idle = (
                step.terminated | step.truncated
            ) & ~step.is_first  # NEXT_STEP: the coming action is ignored
            obs = step.obs
    finally:
        env.close()


def test_multi_discrete_masks_are_concatenated() -> None:
    env = make_env(MultiDiscreteMaskEnv, 2)
    obs = env.reset()
    assert env.observation_space["action_mask"] == spaces.MultiBinary(5)  # type: ignore[index]
    for t in range(9):
        action = np.stack([obs["action_mask"][:, :2].argmax(1), obs["action_mask"][:, 2:].argmax(1)], axis=1)
        assert action[0].tolist() == [t % 4 % 2, t % 4 % 3]
        obs = env.step(action).obs


def test_a_dict_observation_gains_the_leaf() -> None:
    class Masked(NestedObsEnv):
        def reset(self, **kwargs: Any) -> Any:
            obs, info = super().reset(**kwargs)
            return obs, {**info, "action_mask": [1, 0]}

        def step(self, action: Any) -> Any:
            *rest, info = super().step(action)
            return (*rest, {**info, "action_mask": [1, 0]})

    env = make_env(Masked)
    assert list(env.observation_space.spaces) == ["sensors", "task", "action_mask"]  # type: ignore[attr-defined]
    assert env.reset()["action_mask"].tolist() == [[1, 0]]


def test_modes_of_the_option() -> None:
    def space(**options: Any) -> Any:
        return make_env(MaskInfoEnv, **options).observation_space

    plain = CounterEnv().observation_space
    masked = spaces.Dict({"obs": plain, "action_mask": spaces.MultiBinary(3)})
    assert space() == space(action_mask="info") == masked
    assert space(action_mask="none") == plain
    assert space(action_mask="legal", kwargs={"key": "legal"}) == masked
    assert space(kwargs={"key": "legal"}) == plain
    assert make_env(CounterEnv).observation_space == plain
    assert list(make_env(MaskObsEnv, action_mask="none").observation_space) == ["observation"]  # type: ignore[call-overload]


def test_a_mask_that_is_asked_for_and_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="'legal'"):
        make_env(MaskInfoEnv, action_mask="legal")
    with pytest.raises(ConfigError, match="Discrete or MultiDiscrete"):
        make_env("Pendulum-v1", action_mask="info")


class _Bad(CounterEnv):
    """Gives a bad mask at count 2."""

    bad: Any = None

    def reset(self, **kwargs: Any) -> Any:
        obs, _ = super().reset(**kwargs)
        return obs, {"action_mask": np.ones(2, np.int8)}

    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        given = np.ones(2, np.int8) if self.t != 2 else self.bad
        return (*rest, {} if given is None else {"action_mask": given})


@pytest.mark.parametrize(
    ("bad", "message"),
    [(np.zeros(2), "allows no action"), (None, "no 'action_mask'")],
)
@pytest.mark.parametrize("form", ["serial", "sync", *MODES])
def test_bad_masks_name_environment_and_step(form: str, bad: Any, message: str) -> None:
    cls = type("Bad", (_Bad,), {"bad": bad})
    makes = [lambda: _Bad(9), lambda: cls(9)]
    makes[0] = lambda: type("Good", (_Bad,), {"bad": np.ones(2)})(9)
    vector = form in MODES
    env = (
        make_env(SyncVectorEnv(makes, autoreset_mode=form)) if vector else make_env(makes, vectorization=form)
    )
    env.reset()
    env.step(np.zeros(2, np.int64))
    with pytest.raises(ActionMaskError, match=message) as caught:
        env.step(np.zeros(2, np.int64))
    assert "environment 1" in str(caught.value) and "step 2" in str(caught.value)


def test_a_mask_of_the_wrong_size_is_named() -> None:
    env = make_env(type("Bad", (_Bad,), {"bad": np.ones(3)}), kwargs={"length": 9})
    env.reset()
    env.step(np.zeros(1, np.int64))
    with pytest.raises(ActionMaskError, match=r"step 2 .* shape \(3,\); expected 2 entries"):
        env.step(np.zeros(1, np.int64))


def test_all_zero_masks_are_fine_at_the_end_of_an_episode() -> None:
    cls = type("Bad", (_Bad,), {"bad": np.zeros(2)})
    for form in ("serial", *MODES):
        env = make_env(
            SyncVectorEnv([lambda: cls(2)], autoreset_mode=form) if form in MODES else lambda: cls(2)
        )
        env.reset()
        env.step(np.zeros(1, np.int64))
        assert env.step(np.zeros(1, np.int64)).final.obs["action_mask"].tolist() == [[1, 1]]  # type: ignore[union-attr]


def test_tensor_masks_never_wait_for_the_device() -> None:
    class Sim(TensorCounter):
        def __init__(self) -> None:
            super().__init__(2, (2, 3), final="dense")
            self.action_space = spaces.Discrete(3)  # type: ignore[assignment]

        def mask(self) -> Any:
            return {"action_mask": torch.tensor([[True, False, False], [False, False, False]])}

        def reset(self, seed: int | None = None) -> Any:
            return super().reset()[0], self.mask()

        def step(self, action: Any) -> Any:
            *rest, info = super().step(action[:, None])
            return (*rest, {**info, **self.mask()})

    env = make_env(Sim())
    assert env.observation_space["action_mask"] == spaces.MultiBinary(3)  # type: ignore[index]
    expected = [[1, 0, 0], [1, 1, 1]]
    assert env.reset()["action_mask"].tolist() == expected
    step = env.step(torch.zeros(2, dtype=torch.int64))
    assert step.obs["action_mask"].tolist() == expected and step.next_obs["action_mask"].shape == (2, 3)
