"""Inside a rollout of a tensor environment nothing waits for the device, and nothing leaves it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from uniarena import Agent, Trainer, make_env
from uniarena.nets import inference
from uniarena.sampling import LocalSampler

WAITING = (
    "_local_scalar_dense",
    "nonzero",
    "is_nonzero",
    "masked_select",
    "unique",
    "equal",
    "_assert_async",
)
HOST = ("numpy", "item", "tolist", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__")
MASKED = ("index", "index_put", "index_put_")


class _Device(TorchDispatchMode):
    """Fails on operations that would make an accelerator wait, or move a tensor off it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        assert name not in WAITING, f"{name} waits for the device"
        if name in MASKED:
            assert all(i is None or i.dtype != torch.bool for i in args[1]), (
                f"{name} by a mask waits for the device"
            )
        if name == "_to_copy":
            assert kwargs.get("device") in (None, args[0].device), "a tensor leaves its device"
        return func(*args, **kwargs)


@contextmanager
def on_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on an accelerator: what would wait for it, or look at its numbers from the host, is an error."""

    def refuse(name: str) -> Any:
        def host(*args: Any, **kwargs: Any) -> Any:
            raise AssertionError(f"Tensor.{name} looks at a tensor from the host")

        return host

    with monkeypatch.context() as patch, _Device():
        for name in HOST:
            patch.setattr(torch.Tensor, name, refuse(name))
        yield


@pytest.fixture(autouse=True)
def _no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks go the ways that they go on an accelerator."""
    monkeypatch.setattr(inference, "speaks_numpy", lambda tensor: False)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.item(),
        lambda x: bool(x > 0),
        lambda x: x[x > 0],
        lambda x: x.numpy(),
        lambda x: x.tolist(),
        lambda x: x.to("meta"),
        lambda x: (x > 0).nonzero(),
    ],
)
def test_the_watch_sees_what_it_should(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(())
    with on_device(monkeypatch), pytest.raises(AssertionError, match=r"wait|host|device"):
        use(x)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize(
    ("wrappers", "parts"),
    [
        ([], {}),
        (["normalize_observation", "normalize_reward", {"type": "scale_reward", "scale": 0.1}], {}),
        ([{"type": "frame_stack", "n_frames": 2}], {}),
        ([], {"memory": {"type": "gru", "hidden_size": 8}}),
    ],
    ids=["plain", "normalised", "stacked", "memory"],
)
def test_a_rollout_stays_on_its_device(
    env_id: str, wrappers: list[Any], parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_env(env_id, 8, vectorization="tensor", wrappers=wrappers, max_episode_steps=6)
    agent = Agent.assemble(env, {"type": "ppo", "n_steps": 10, "batch_size": 40}, parts=parts)
    # the pass that annotates sequences cuts them where episodes begin, which it looks up once a chunk
    sampler = LocalSampler(env, agent.streams, records=() if "memory" in parts else ("log_prob",))
    sampler.publish(agent.actor, 0)
    sampler.collect(80)  # its memory is made here
    with on_device(monkeypatch):
        rollout = sampler.collect(80)
    assert rollout.rows.truncated.any() and "next_obs" in rollout.rows


def _looks(steps: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the host looks at a tensor in one iteration: collect, guard, statistics, bonus, episodes, update."""
    wrappers = ["normalize_observation", "normalize_reward"]
    env = make_env("CartPole-v1", 8, vectorization="tensor", wrappers=wrappers, max_episode_steps=6)
    learner = {"type": "ppo", "n_steps": steps, "batch_size": None, "n_epochs": 2}
    agent = Agent.assemble(env, learner, parts={"intrinsic": [{"type": "rnd"}]})
    trainer = Trainer(agent, env)
    trainer.fit(2 * 8 * steps)
    found: list[str] = []

    def counted(name: str, method: Any) -> Any:
        def host(*args: Any, **kwargs: Any) -> Any:
            found.append(name)
            return method(*args, **kwargs)

        return host

    with monkeypatch.context() as patch:
        for name in HOST:
            patch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
        trainer.fit(3 * 8 * steps)
    assert len(found) > 5
    return len(found)


def test_an_iteration_looks_at_tensors_as_often_however_long_its_rollout_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _looks(12, monkeypatch) == _looks(48, monkeypatch)
