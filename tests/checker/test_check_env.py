"""Each fault is named with key, expected, got, fix and line; good environments give nothing."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from tests.checker import wrong_envs as wrong
from tests.fakes import envs as fakes
from uniarena.envs.checker import Problem, check_env, report
from uniarena.seeding import global_state


def only(problems: list[Problem]) -> Problem:
    """The one problem, whole in the message of a failing test."""
    assert len(problems) == 1, report("env", problems)
    return problems[0]


def marked_line(cls: type) -> str:
    """`<number>: <source>` of the line marked in the class."""
    lines, start = inspect.getsourcelines(cls)
    return next(f"{start + k}: {line.strip()}" for k, line in enumerate(lines) if "# <- here" in line)


STEP = "(obs, reward, terminated, truncated, info)"
WRONG: list[tuple[type, str, str, str, str, str]] = [
    (
        wrong.WrongShape,
        *("wrong shape", "step() obs", "(3,)", "(3, 1)"),
        "return an array of shape (3,), or declare the space with shape=(3, 1)",
    ),
    (
        wrong.WrongDtype,
        *("wrong dtype", "step() obs", "float32", "int64"),
        "return obs.astype(np.float32), or declare the space with dtype=np.int64",
    ),
    (
        wrong.MissingKey,
        *("missing key", "step() obs['vel']", "the key 'y': Box(-1.0, 1.0, (3,), float32)", "keys ['x']"),
        "add 'y' to the observation, or take it out of observation_space",
    ),
    (
        wrong.ExtraKey,
        *("extra key", "step() obs", "only the keys ['pos', 'vel']", "the key 'time' too"),
        "add 'time' to observation_space, or leave it out of the observation",
    ),
    (
        wrong.RewardShape,
        *("wrong shape", "step() reward", "a number, shape ()", "shape (2,): ndarray array([1., 1.])"),
        "return one number, e.g. float(np.sum(reward))",
    ),
    (
        wrong.NoneInfo,
        *("wrong type", "step() info", "a dict", "None"),
        "return {} where there is nothing to tell",
    ),
    (
        wrong.OutOfBounds,
        *("out of bounds", "step() obs", "-1.0 … 1.0 at index 1", "1.5 at index 1"),
        "np.clip the observation, or widen low and high of the space",
    ),
    (
        wrong.ForgottenReturn,
        *("nothing returned", "reset()", "(obs, info)", "None"),
        "end reset with `return obs, {}`",
    ),
    (
        wrong.FourTuple,
        *("4-tuple", "step()", STEP, "a tuple of 4, as in the old gym: (obs, reward, done, info)"),
        "split done: terminated where the task is over, truncated at a time limit; "
        "return obs, reward, terminated, truncated, info",
    ),
    (
        wrong.NotANumber,
        *("not finite", "step() obs", "finite numbers", "nan at index 2"),
        "find the 0/0, sqrt(<0) or overflow behind it",
    ),
]


@pytest.mark.parametrize(
    ("cls", "kind", "key", "expected", "got", "fix"), WRONG, ids=[row[0].__name__ for row in WRONG]
)
def test_ten_wrong_environments(
    cls: type, kind: str, key: str, expected: str, got: str, fix: str
):  # case B77
    problem = only(check_env(cls))
    told = (problem.kind, problem.key, problem.expected, problem.got, problem.fix)
    assert told == (kind, key, expected, got, fix)
    assert problem.level == "error"
    assert problem.line == f"tests/checker/wrong_envs.py:{marked_line(cls)}"


def test_the_text_of_a_problem_reads_as_a_whole():
    problem = only(check_env(wrong.WrongShape()))
    assert str(problem) == (
        "error: wrong shape in step() obs\n"
        "  expected (3,)\n"
        "  got      (3, 1)\n"
        "  fix      return an array of shape (3,), or declare the space with shape=(3, 1)\n"
        f"  line     tests/checker/wrong_envs.py:{marked_line(wrong.WrongShape)}"
    )
    assert problem.is_error and problem.to_json()["fix"] == problem.fix
    assert report("MyEnv", [problem]).startswith("MyEnv: 1 error.\n\nerror: wrong shape")
    assert report("MyEnv", []) == "MyEnv: no problems found."


GOOD: list[Any] = [
    wrong.Good,
    wrong.Good(),
    "CartPole-v1",
    "Pendulum-v1",
    "FrozenLake-v1",
    "tests.fakes.envs:EchoEnv",
    fakes.CounterEnv,
    fakes.NestedObsEnv,
    fakes.MaskInfoEnv,
    fakes.MaskObsEnv,
    fakes.MultiDiscreteMaskEnv,
    fakes.CounterVectorEnv,
    fakes.TensorCounter,
    fakes.IsaacCounter,
    lambda: gym.make_vec("CartPole-v1", 3, vectorization_mode="sync"),
    lambda: gym.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point"),
    [fakes.CounterEnv, fakes.CounterEnv],
]


@pytest.mark.parametrize("env", GOOD)
def test_good_environments_give_no_problems(env: Any):
    assert check_env(env, steps=30) == [], report("env", check_env(env, steps=30))


def test_an_observation_changed_in_place_is_found():
    problem = only(check_env(wrong.ChangedInPlace))
    assert (problem.kind, problem.key, problem.fix) == (
        "changed in place",
        "obs",
        "return a copy: `obs.copy()`",
    )
    assert problem.got == "step() wrote into the array that was returned before"
    assert problem.line.endswith(marked_line(wrong.ChangedInPlace))


@pytest.mark.parametrize("env", [wrong.NotRepeatable, wrong.NotRepeatable()], ids=["class", "instance"])
def test_randomness_beside_the_seed_is_found(env: Any):
    problem = only(check_env(env))
    assert (problem.kind, problem.key) == ("not repeatable", "step 1 obs")
    assert "seed=0" in problem.expected and "self.np_random" in problem.fix
    assert problem.line.endswith(marked_line(wrong.NotRepeatable))


def test_huge_values_are_warned_of():  # case B26
    problems = {problem.key: problem for problem in check_env(wrong.Huge)}
    assert set(problems) == {"reset() obs", "step() obs", "step() reward"}
    assert all((p.kind, p.level) == ("huge value", "warning") for p in problems.values())
    assert (
        problems["reset() obs"].got == "2e+06 at index (0, 0)"
        and "normalize_observation" in problems["reset() obs"].fix
    )
    assert problems["step() reward"].got == "-3e+07" and "normalize_reward" in problems["step() reward"].fix


def test_integers_that_are_no_image_are_noted():  # case B26
    env = fakes.SpaceEnv(spaces.Box(0, 255, (6,), np.uint8))
    problem = only(check_env(env))
    assert (problem.level, problem.kind, problem.key) == ("note", "unscaled integers", "observation_space")
    assert "not taken for an image and not divided by 255" in problem.fix


def test_all_faults_of_an_environment_are_told_at_once():
    kinds = {(p.kind, p.key) for p in check_env(wrong.ManyFaults)}
    assert kinds == {
        ("wrong shape", "reset() obs"),
        ("wrong type", "reset() info"),
        ("not finite", "step() obs"),
        ("wrong type", "step() reward"),
        ("wrong type", "step() terminated"),
        ("wrong type", "step() truncated"),
        ("wrong type", "step() info"),
    }


def test_an_exception_is_told_with_its_line():
    problem = only(check_env(wrong.Raises))
    assert (problem.kind, problem.key, problem.got) == ("KeyError raised", "step()", "'speed'")
    assert problem.line == f"tests/checker/wrong_envs.py:{marked_line(wrong.Raises)}"


def test_one_instance_given_as_several_is_found():  # case B88
    env = wrong.Good()
    several = only(check_env([lambda: env] * 4))
    assert (several.kind, several.key) == ("shared instance", "envs")
    assert several.got == "environments 0 and 1 are the same" and "lambda: MyEnv()" in several.fix
    assert only(check_env(lambda: env)).kind == "shared instance"
    vector = gym.vector.SyncVectorEnv([lambda: env] * 2)
    assert "shared instance" in {problem.kind for problem in check_env(vector)}


def test_old_gym_ways_are_named_and_the_check_goes_on():
    problems = {problem.kind: problem for problem in check_env(fakes.LegacyBareEnv)}
    assert set(problems) == {"legacy space", "missing argument", "wrong return", "4-tuple"}
    assert all(
        problem.level == "warning" for problem in problems.values()
    )  # an adapter takes them as they are
    assert problems["missing argument"].line.endswith("def reset(self) -> np.ndarray:")
    missing = [p for p in check_env(fakes.LegacyNoResetEnv) if p.level == "error"]
    assert only(missing).kind == "missing" and "def reset(self, *, seed=None, options=None)" in missing[0].fix


def test_what_is_declared_is_explained_by_notes():
    action = spaces.Dict(
        {
            "force": spaces.Box(np.float32([0, -np.inf]), np.float32([1, np.inf])),
            "gear": spaces.Discrete(3, start=1),
            "turn": spaces.Box(-1.0, 1.0, (1,), np.float64),
        }
    )
    problems = check_env(fakes.SpaceEnv(spaces.Box(-1.0, 1.0, (2,), np.float64), action))
    assert {(p.level, p.kind, p.key) for p in problems} == {
        ("note", "float64", "observation_space"),
        ("note", "infinite bounds", "action_space['force']"),
        ("note", "start", "action_space['gear']"),
        ("note", "float64", "action_space['turn']"),
    }
    assert "dimension(s) [1]" in next(p.got for p in problems if p.kind == "infinite bounds")


def test_unsupported_and_missing_spaces_are_named():
    space = spaces.Dict({"grid": spaces.Box(0.0, 1.0, (7, 7)), "mission": spaces.Text(40)})
    problem = check_env(fakes.SpaceEnv(space))[0]
    assert (problem.kind, problem.key, problem.got) == (
        "unsupported space",
        "observation_space['mission']",
        "Text",
    )

    class NoSpaces(wrong.Good):
        def __init__(self) -> None:
            self.t = 0

        def observe(self) -> Any:
            return np.zeros(3, np.float32)

    problems = check_env(NoSpaces)
    assert {(p.kind, p.key) for p in problems} == {
        ("missing", "observation_space"),
        ("missing", "action_space"),
    }


@pytest.mark.parametrize("reward", [1, True, 1.0, np.float32(1), np.float64(1), np.array(1.0)])
def test_scalar_rewards_of_every_kind_pass(reward: Any):  # case B18
    class Env(wrong.Good):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, reward, *rest

    assert check_env(Env) == []


def test_a_reward_of_one_element_is_only_warned_of():  # case B18
    class Env(wrong.Good):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, np.ones(1), *rest

    problem = only(check_env(Env))
    assert (problem.level, problem.kind, problem.fix) == ("warning", "wrong shape", "return float(reward[0])")


def test_masks_are_checked():
    class Empty(fakes.MaskInfoEnv):
        def mask(self) -> np.ndarray:
            return np.zeros(3, np.int8) if self.t == 1 else np.ones(3, np.int8)

        def step(self, action: int) -> Any:
            return *fakes.CounterEnv.step(self, action)[:4], {"action_mask": self.mask()}

    class Long(Empty):
        def mask(self) -> np.ndarray:
            return np.ones(5, np.int8)

    assert [(p.kind, p.key) for p in check_env(Empty)] == [("empty mask", "action_mask")]
    assert [(p.kind, p.got) for p in check_env(Long)] == [("wrong shape", "(5,)")]


def test_faults_in_a_batch_name_the_column():
    class Flat(fakes.CounterVectorEnv):
        def step(self, actions: Any) -> Any:
            obs, reward, *rest = super().step(actions)
            reward[2] = np.nan
            return obs[:3], reward, *rest

    problems = {(p.kind, p.key): p for p in check_env(Flat)}
    assert problems["wrong shape", "step() obs"].expected == "first axis 4, one row per environment"
    assert problems["not finite", "step() reward"].got == "nan (environment 2)"


def test_a_vector_environment_of_faulty_ones_is_checked_column_by_column():
    vector = gym.vector.SyncVectorEnv([wrong.Good, wrong.OutOfBounds])
    problem = only(check_env(vector))
    assert (problem.kind, problem.got) == ("out of bounds", "1.5 at index 1 (environment 1)")


@pytest.mark.parametrize(
    "env",
    [
        "NoSuchEnv-v7",
        "no_such_module:Env",
        "tests.fakes.envs:NoSuchClass",
        object(),
        lambda: None,
        int,
        type("NoInit", (), {"__init__": lambda self, needed: None}),
        [],
    ],
)
def test_what_is_no_environment_is_told_and_never_crashes(env: Any):
    assert check_env(env) != []


def test_random_streams_of_the_caller_are_left_alone():
    before = global_state()
    check_env(wrong.NotRepeatable)
    assert repr(global_state()) == repr(before)


class Hostile:
    """Looks like an array and raises at every touch."""

    shape, dtype = (3,), np.float32

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        return "Hostile()"


JUNK: list[Any] = [
    *(None, 0, "x", b"y", [], [[1], [1, 2]], {}, {1: 2}, (), ((),), {"pos": None}, range(3), type, 10**400),
    *(np.zeros(()), np.array(["a"]), np.array([None]), np.zeros((3, 3), complex), float("nan"), complex(1)),
    *(Hostile(), Ellipsis),
]
SPACES = [
    spaces.Box(-1.0, 1.0, (3,), np.float32),
    spaces.Discrete(3),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(4),
    spaces.Dict({"pos": spaces.Box(0, 255, (2, 2, 3), np.uint8)}),
    spaces.Tuple((spaces.Discrete(2), spaces.Box(0.0, 1.0, ()))),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("junk", range(len(JUNK)))
def test_no_return_value_crashes_the_checker(space: Any, junk: int):
    class Env(wrong.Good):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = space

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
            return JUNK[junk] if self.whole else (JUNK[junk], JUNK[junk])

        def step(self, action: Any) -> Any:
            return JUNK[junk] if self.whole else (JUNK[junk],) * 5

        whole = False

    for whole in (False, True):
        Env.whole = whole
        problems = check_env(Env, steps=3)
        assert problems and not any(problem.key == "check" for problem in problems), report("env", problems)
