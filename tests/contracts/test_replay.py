"""Single transitions out of rollouts equal those of a plain list of episodes, in every autoreset mode."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.contracts.counting import FORMS, LENGTHS, own, sampled, transitions
from tests.contracts.doors import Transitions
from tests.fakes.envs import TensorCounter
from uniarena.envs import UniArenaNotice, make_env

GAMMA = 0.9


@pytest.mark.parametrize("end", ["termination", "truncation"])
@pytest.mark.parametrize("name", FORMS)
def test_replayed_transitions_are_those_of_the_episodes(name: str, end: str) -> None:
    parts = sampled(FORMS[name](LENGTHS, end), own)
    replay, real = Transitions(GAMMA), [0] * len(LENGTHS)
    actions: Counter[int] = Counter()
    for steps in (1, 7, 4, 11):  # chunks that cut episodes anywhere
        rollout = parts.collect(steps)
        replay.add(rollout)
        real = [n + int(k) for n, k in zip(real, rollout.rows.valid.sum(0), strict=True)]
        actions.update(rollout.rows.action[rollout.rows.valid].flatten().tolist())
    parts.sampler.close()
    found = list(replay)
    expected = Counter(
        (s.at, s.reward, s.after, 0.0 if s.terminated else GAMMA)
        for length, count in zip(LENGTHS, real, strict=True)
        for s in transitions(length, end, count)
    )
    assert Counter((obs, reward, after, round(d, 6)) for obs, _, reward, after, d in found) == expected
    assert Counter(action for _, action, *_ in found) == actions


def test_a_transition_whose_successor_was_lost_is_left_out() -> None:
    with pytest.warns(UniArenaNotice):
        env = make_env(TensorCounter(1, [3], "truncation", None))
    parts = sampled(env, own)
    replay = Transitions(GAMMA)
    replay.add(parts.collect(9))
    assert [(obs, after) for obs, _, _, after, _ in replay] == [(0, 1), (1, 2)] * 3
