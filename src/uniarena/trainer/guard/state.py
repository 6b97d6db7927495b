"""The agent's own numbers: whether they are good, a copy of the last good ones, and ways to mend bad ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from uniarena.agent import Agent, rebuilt
from uniarena.config import ConfigError
from uniarena.ops.finite import beyond, bounded, describe_beyond, largest_within
from uniarena.optim import NonFiniteError, Optimizer
from uniarena.optim.targets import Target
from uniarena.seeding import Streams
from uniarena.trainer.guard.copy import Copy


class AgentState:
    """Parameters, optimisers and statistics of an agent.

    Args:
        agent: the agent; its parts are looked up here, once.
        max_abs: larger parameters are bad.

    Attributes:
        taken: whether there is a good state to go back to.
    """

    def __init__(self, agent: Agent, max_abs: float) -> None:
        self.agent, self.max_abs = agent, max_abs
        parts = {"": agent.learner} | {f"bonus {k}: ": bonus for k, bonus in enumerate(agent.bonuses)}
        modules = {prefix: part for prefix, part in parts.items() if isinstance(part, nn.Module)}
        named = {
            prefix + name.removeprefix("model."): tensor
            for prefix, module in modules.items()
            for name, tensor in (*module.named_parameters(), *module.named_buffers())
            if tensor.is_floating_point() and tensor.numel()
        }
        self.trained = {name: x for name, x in named.items() if x.requires_grad}
        # Masks of −inf and the like are meant: what is not finite from the start is not looked at.
        self.others = {
            name: x for name, x in named.items() if not x.requires_grad and bool(x.isfinite().all())
        }
        self.names = {id(x): name for name, x in named.items()}
        owners = [
            m for part in parts.values() for m in (part.modules() if isinstance(part, nn.Module) else [part])
        ]
        held = [x for owner in owners for x in vars(owner).values() if isinstance(x, Optimizer)]
        self.optimizers = list({id(optimizer): optimizer for optimizer in held}.values())
        self._fixed = [*self.trained.values(), *self.others.values()]
        self._good = Copy(list(modules.values()), self.optimizers, agent.reward_scaler)
        self.taken = False

    # -- looking -------------------------------------------------------------------------------------------------
    def fault(self) -> NonFiniteError | None:
        """What is bad; None: nothing is."""
        return None if self._surely_good() else self._find()

    @torch.no_grad()
    def _surely_good(self) -> bool:
        """One norm over everything: not finite or large wherever a number is. A large one may still be good."""
        tensors = list(self._fixed)
        for optimizer in self.optimizers:
            for state in optimizer.torch.state.values():
                tensors += [x for key, x in state.items() if key != "step" and isinstance(x, Tensor)]
        norms = list(torch._foreach_norm(tensors))
        if len({norm.device for norm in norms}) > 1:
            norms = [norm.cpu() for norm in norms]
        return float(torch.stack(norms).sum()) <= self.max_abs

    @torch.no_grad()
    def _find(self) -> NonFiniteError | None:
        found = self._bad(self.trained, self.max_abs)
        where, noun = "parameter", "parameter"
        if not found:
            where, noun = "optimizer", "optimiser state"
            moments = {
                f"{key} of {self.names.get(id(parameter), '?')}": x
                for optimizer in self.optimizers
                for parameter, state in optimizer.torch.state.items()
                for key, x in state.items()
                if isinstance(x, Tensor) and x.is_floating_point() and x.numel()
            }
            found = self._bad(moments, torch.finfo(torch.float32).max)
        if not found:
            where, noun = "buffer", "buffer"
            found = self._bad(self.others, torch.finfo(torch.float32).max)
        if not found:
            return None
        listed = "; ".join(f"{name} is {said}" for name, said in list(found.items())[:3])
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        return NonFiniteError(where, list(found), f"bad numbers in the agent: {noun} {listed}{more}")

    @staticmethod
    def _bad(tensors: dict[str, Tensor], bound: float) -> dict[str, str]:
        bad = {name: x for name, x in tensors.items() if bool(beyond(x, bound).any())}
        return {name: describe_beyond(x, bound) for name, x in bad.items()}

    # -- the last good state -------------------------------------------------------------------------------------
    def take(self) -> None:
        """Keep a copy of the present state, which must be good."""
        self._good.take()
        self.taken = True

    def restore(self) -> None:
        """Go back to the copy. Random streams stay where they are, so that what follows is not the same again."""
        streams = self.agent.streams.state_dict()
        self._good.restore()
        self.agent.streams.load_state_dict(streams)

    # -- mending -------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def mend(self) -> int:
        """Bounded numbers in place of bad parameters, no state in place of a bad optimiser's → how many were bad."""
        count = 0
        for parameter in self.trained.values():
            bad = int(beyond(parameter, self.max_abs).sum())
            if bad:
                count += bad
                parameter.copy_(bounded(parameter, self.max_abs, largest_within(parameter, self.max_abs)))
        for optimizer in self.optimizers:
            for parameter, state in list(optimizer.torch.state.items()):
                tensors = [x for x in state.values() if isinstance(x, Tensor)]
                bad = sum(int((~x.isfinite()).sum()) for x in tensors)
                if bad:
                    count += bad
                    optimizer.torch.state.pop(parameter)
        return count

    def part_of(self, error: NonFiniteError, part: str) -> list[str]:
        """Names of the parameters that `part` means: what the error names for `auto`, else the policy, value, …"""
        if part != "auto":
            return [name for name in self.trained if _matches(name, part)]
        own = [name.rsplit(" of ", 1)[-1] for name in error.names]
        own = [name for name in own if name in self.trained] or self._full(own)
        if (
            not own
        ):  # metrics were bad: the networks they are named after, else all that the step would have changed
            changed = self._full(error.parameters) or list(self.trained)
            heads = {name.split("_")[0] for name in error.names}
            own = [name for name in changed if any(_matches(name, head) for head in heads)] or changed
        parts = {_head(name) for name in own}
        return [name for name in self.trained if _head(name) in parts]

    def _full(self, names: list[str]) -> list[str]:
        """The same parameters as the learner's optimisers name them, by their names here."""
        known = {
            name: self.names[id(parameter)]
            for optimizer in reversed(self.optimizers)
            for name, parameter in zip(optimizer.names, optimizer.parameters, strict=True)
            if id(parameter) in self.names
        }
        return [known[name] for name in names if name in known]

    @torch.no_grad()
    def reinit(self, names: list[str], seed: int) -> None:
        """First weights drawn anew for these parameters, without optimiser state; their target networks follow."""
        learner, bonuses = rebuilt(self.agent, Streams(seed))
        fresh = {"": learner} | {f"bonus {k}: ": bonus for k, bonus in enumerate(bonuses)}
        tensors = {
            prefix + name.removeprefix("model."): tensor
            for prefix, part in fresh.items()
            for name, tensor in part.named_parameters()
        }
        chosen = {id(self.trained[name]) for name in names}
        for name in names:
            self.trained[name].copy_(tensors[name])
        for optimizer in self.optimizers:
            for parameter in optimizer.parameters:
                if id(parameter) in chosen:
                    optimizer.torch.state.pop(parameter, None)
        for module in self.agent.learner.modules():
            if isinstance(module, Target) and module.follows(chosen):
                module.reset()

    def check_part(self, part: str) -> None:
        """Whether `training.guard.part` names something.

        Raises:
            ConfigError: it does not.
        """
        if part != "auto" and not any(_matches(name, part) for name in self.trained):
            heads = sorted({_head(name) for name in self.trained})
            raise ConfigError(
                f"no part of this agent is called {part!r}; its parts are {', '.join(heads)}.",
                path="training.guard.part",
                hint="name one of them, or leave it out: the part at fault is taken.",
            )


def _head(name: str) -> str:
    """The part that a parameter belongs to: `policy`, `value_net`, `q`, `network`, `bonus 0`."""
    return name.partition(":")[0] if name.startswith("bonus ") else name.partition(".")[0]


def _matches(name: str, part: str) -> bool:
    """Whether a parameter belongs to a part: by its dotted path, or as `value` means `value_net`."""
    return name == part or name.startswith((f"{part}.", f"{part}:", f"{part}_"))
