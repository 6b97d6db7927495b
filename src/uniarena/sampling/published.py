"""An actor on its way to another process: sent whole once, and from then on its parameters through shared memory."""

from __future__ import annotations

import io
from typing import Any, ClassVar

import cloudpickle
import torch
from torch import Tensor, nn

from uniarena.explorers.actor import Actor
from uniarena.sampling.shared import SharedMemory, lay_out, views

SLOTS = 2
"""Versions that lie side by side: one is read while the next is written."""


class Published:
    """The sending side: the tensors of a policy (parameters, buffers, observation statistics), found once.

    Args:
        actor: live.
        memory: where they are laid out.

    Attributes:
        message: the actor without these tensors.
        block: the shared bytes.
        likes: (dtype, shape) of each tensor, in order.
    """

    def __init__(self, actor: Actor, memory: SharedMemory) -> None:
        found = _Tensors()
        found.dump(actor.policy)
        sender = _Tensors(found.places)
        sender.dump(actor)
        self.message = sender.file.getvalue()
        self._places = list(found.places.values())
        live = self._live()
        self.likes = [(x.dtype, tuple(x.shape)) for x in live]
        self.trained = [isinstance(x, nn.Parameter) for x in live]
        size, plan = lay_out(live, SLOTS)
        self.block = memory.allocate((size,), torch.uint8)
        self._slots = [views(self.block, live, spans) for spans in plan]
        self._turn = 0

    def _live(self) -> list[Tensor]:
        """The tensors of now: a module may put another one in the place of a buffer."""
        return [owner[key] for owner, key in self._places]

    @torch.no_grad()
    def write(self, slot: int) -> int:
        """Copy the present values into a slot → the slot."""
        torch._foreach_copy_(self._slots[slot], self._live())
        return slot

    def write_next(self) -> int:
        """The same into the slot that is not being read."""
        self._turn = (self._turn + 1) % SLOTS
        return self.write(self._turn)


class Received:
    """The receiving side: an actor of its own, on the CPU.

    Args:
        message, likes, trained: of `Published`.
        block: the shared bytes, with values in slot 0.
    """

    def __init__(
        self,
        message: bytes,
        likes: list[tuple[torch.dtype, tuple[int, ...]]],
        trained: list[bool],
        block: Tensor,
    ) -> None:
        own = [torch.zeros(shape, dtype=dtype) for dtype, shape in likes]
        self._slots = [views(block, own, spans) for spans in lay_out(own, SLOTS)[1]]
        self._own = [
            nn.Parameter(x, requires_grad=x.is_floating_point()) if parameter else x
            for x, parameter in zip(own, trained, strict=True)
        ]
        self.actor: Actor = _Numbered.load(message, self._own)

    @torch.no_grad()
    def read(self, slot: int) -> None:
        """Take over the values of a slot."""
        torch._foreach_copy_(self._own, self._slots[slot])


class _Tensors(cloudpickle.Pickler):
    """Pickles an object with numbers in place of the tensors of its modules.

    Args:
        known: those to leave out; None: all that are met, which are gathered in `places`.
    """

    def __init__(self, known: dict[int, tuple[Any, Any]] | None = None) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file)
        self.places: dict[int, tuple[Any, Any]] = {} if known is None else known
        self._order = {key: number for number, key in enumerate(self.places)}
        self._open = known is None

    def reducer_override(self, obj: Any) -> Any:
        """Numbers for tensors that were found; whatever else is on another device acts on the CPU there."""
        if isinstance(obj, nn.Module) and self._open:
            for owner in (obj._parameters, obj._buffers):
                for key, tensor in owner.items():
                    if tensor is not None and id(tensor) not in self.places:
                        self._order[id(tensor)] = len(self.places)
                        self.places[id(tensor)] = (owner, key)
        if isinstance(obj, Tensor):
            number = self._order.get(id(obj))
            if number is not None:
                return _Numbered.tensor, (number,)
            if obj.device.type != "cpu":
                return obj.detach().cpu().__reduce_ex__(2)
        if isinstance(obj, torch.device):
            return torch.device, ("cpu",)
        return super().reducer_override(obj)


class _Numbered:
    """The tensors that a message is being read with."""

    own: ClassVar[list[Tensor]] = []

    @classmethod
    def tensor(cls, number: int) -> Tensor:
        return cls.own[number]

    @classmethod
    def load(cls, message: bytes, tensors: list[Tensor]) -> Any:
        """Read what `_Tensors` wrote, which only ever goes between our own processes."""
        cls.own = tensors
        try:
            return cloudpickle.loads(message)
        finally:
            cls.own = []
