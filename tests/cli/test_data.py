"""`uniarena data`: what is asked of a file on the command line, and a run's agent recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Told
from tests.offline.episodes import keyed
from uniarena.data import load

Ua = Callable[..., Told]


def steps(path: Path) -> Path:
    """B81: episodes of 2, 1 and 2 steps, the last of which stops without a flag."""
    return keyed(
        path,
        observations=np.arange(5, dtype=np.float32)[:, None],
        actions=np.array([0, 1, 1, 0, 1]),
        rewards=np.ones(5),
        terminals=np.array([0, 1, 1, 0, 0]),
    )


def test_a_file_is_inspected(ua: Ua) -> None:
    path = steps(Path("a.npz"))
    told = ua("data", "inspect", path, "--json")
    assert told.code == 0
    wanted = {
        "episodes": 3,
        "transitions": 4,
        "terminated": 2,
        "truncated": 1,
        "dropped": 1,
        "reward_sum": 4.0,
    }
    assert {name: told.json[name] for name in wanted} == wanted
    assert any("1: end of the data" in warning for warning in told.json["warnings"])
    shown = ua("data", "inspect", path, "--page", "page.html")
    assert "4 transitions in 3 episodes, of 5 steps" in shown.out and "wrote page.html" in shown.out
    assert Path("page.html").read_text().startswith("<!doctype html>")


def test_how_a_file_is_read_is_given_beside_it(ua: Ua) -> None:
    path = steps(Path("a.npz"))
    told = ua("data", "inspect", path, "boundary=fixed_length", "episode_length=1", "--json")
    assert told.json["dropped_by_reason"] == {"end of an episode of fixed length": 3}
    assert (
        ua("data", "inspect", path, "keys.reward=rewards", "episodes=[0, 1]", "--json").json["episodes"] == 1
    )
    wrong = ua("data", "inspect", path, "boundry=jump", "--json")
    assert wrong.code == 2 and "boundary" in wrong.err


def test_an_environment_is_held_against_the_file(ua: Ua) -> None:
    told = ua("data", "inspect", steps(Path("a.npz")), "--env", "CartPole-v1", "--json")
    assert told.code == 2
    assert (
        told.json["error"]["type"] == "DataError"
        and "the environment has Box(4)" in told.json["error"]["message"]
    )


def test_what_is_no_data_is_bad_input(ua: Ua) -> None:
    Path("a.npz").write_bytes(b"PK and then nothing")
    for name in ("a.npz", "none.npz"):
        told = ua("data", "inspect", name)
        assert told.code == 2 and name in told.err and "Traceback" not in told.err


def test_the_file_is_named_once(ua: Ua) -> None:
    path = steps(Path("a.npz"))
    for command in (("inspect", path), ("convert", path, "b.npz")):
        told = ua("data", *command, "path=other.npz")
        assert told.code == 2 and "path=other.npz: the data is the one named first, a.npz" in told.err
    assert not Path("b.npz").exists()


def test_a_file_is_converted(ua: Ua) -> None:
    path = steps(Path("a.npz"))
    told = dict(ua("data", "convert", path, "b.npz", "--json").json)
    concluded = " ".join(told.pop("warnings"))
    assert (
        "does not say what actions there are" in concluded
        and "no timeouts and no next observations" in concluded
    )
    assert told == {"written": "b.npz", "format": "npz", "transitions": 4, "dropped": 1, "not_said": []}
    assert load("b.npz").lengths.tolist() == [2, 1, 1]
    assert not load("b.npz").episode(0).final_known  # nothing was invented on the way
    again = ua("data", "convert", path, "b.npz")
    assert again.code == 2 and "nothing is overwritten" in again.err
    assert ua("data", "convert", path, "folder").code == 2
    assert ua("data", "convert", path, "c", "--format", "parquet").code == 2


@pytest.mark.extra("offline")
def test_a_format_tells_what_it_cannot_say(ua: Ua) -> None:
    told = ua("data", "convert", steps(Path("a.npz")), "toy", "--format", "rlds", "--json")
    assert told.json["not_said"] == [
        "that the last observation of 2 terminated episodes is not known (it is a copy)"
    ]
    assert ua("data", "inspect", "toy", "--json").json["transitions"] == 4


def test_an_agent_is_recorded(ua: Ua) -> None:
    assert ua("train", "small.yaml", "--run-dir", "run", "-q").code == 0
    told = ua("data", "record", "run", "--episodes", "5", "--epsilon", "0.3", "--seed", "7", "--json")
    assert told.code == 0 and told.json["episodes"] == 5
    path = Path(told.json["written"])
    assert path == Path("run/data/5-episodes_seed-7_epsilon-0.3.npz")
    data = load(path)
    assert (data.episodes, len(data)) == (5, told.json["transitions"])
    origin = data.source.origin
    assert {name: origin[name] for name in ("run", "learner", "policy", "epsilon", "seed")} == {
        "run": "run",
        "learner": "ppo",
        "policy": "deterministic",
        "epsilon": 0.3,
        "seed": 7,
    }
    assert data.source.env["id"] == "CartPole-v1"
    assert data.returns.tolist() == data.lengths.tolist()  # CartPole gives 1 a step
    assert all(episode.final_known for episode in data)
    again = ua(
        "data", "record", "run", "--episodes", "5", "--epsilon", "0.3", "--seed", "7", "--out", "b.npz"
    )
    assert again.code == 0 and Path("b.npz").read_bytes() == path.read_bytes()
    greedy = ua("data", "record", "run", "--episodes", "3", "--out", "c.npz", "--json")
    assert greedy.code == 0 and load("c.npz").episodes == 3
    before = path.read_bytes()
    for place in ([], ["--out", str(path)]):
        taken = ua("data", "record", "run", "--episodes", "5", "--epsilon", "0.3", "--seed", "7", *place)
        assert taken.code == 2 and "nothing is overwritten" in taken.err and path.read_bytes() == before
    nowhere = ua("data", "record", "run", "--out", "c.npz/d.npz")
    assert nowhere.code == 2 and "cannot be written" in nowhere.err
    assert ua("data", "record", "nowhere").code == 2
    assert ua("data", "record", "run", "--epsilon", "2").code == 2


def test_a_recording_obeys_the_dynamics(ua: Ua) -> None:
    """Every recorded step is the one that the environment itself makes of its observation and action."""
    import gymnasium

    assert ua("train", "small.yaml", "--run-dir", "run", "-q").code == 0
    assert ua("data", "record", "run", "--episodes", "4", "--stochastic", "--out", "a.npz").code == 0
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    for episode in load("a.npz"):
        for k in range(len(episode.reward)):
            env.state = episode.obs[k].astype(np.float64)
            env.steps_beyond_terminated = None
            after, _, terminated, _, _ = env.step(int(episode.action[k]))
            np.testing.assert_allclose(after, episode.obs[k + 1], atol=1e-5)
            assert terminated == episode.terminated[k]
    env.close()
