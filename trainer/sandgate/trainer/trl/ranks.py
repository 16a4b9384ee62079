"""Several training processes: process 0 leases and publishes; the others wait for what it tells them.

While process 0 waits for agents, it says so every few seconds: no collective of torch, which has a time-out, waits for
as long as a rollout takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from sandgate.contract.errors import Conflict, Unavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """Process 0 is still at it."""


@dataclass(frozen=True, slots=True)
class Join:
    """Process 0 begins what all of them have to take part in."""


@dataclass(frozen=True, slots=True)
class Done:
    """Each process is given its own part next."""


@dataclass(frozen=True, slots=True)
class Raised:
    """Process 0 raised this, in words."""

    why: str


Message = Wait | Join | Done | Raised


def leads() -> bool:
    """Is this process 0? By torch, or by what torchrun and `accelerate launch` say before torch knows."""
    import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

    if dist.is_available() and dist.is_initialized():
        return bool(dist.get_rank() == 0)
    alone = int(os.environ.get("WORLD_SIZE") or 1) == 1
    return alone or int(os.environ.get("RANK") or 0) == 0


class Ranks:
    """The processes of one trainer. Each makes it at the same point, and calls the same methods in the same order."""

    def __init__(self, rank: int, count: int, timeout_s: float) -> None:
        """`timeout_s`: after which a process that others wait for counts as lost."""
        self.rank, self.count = rank, count
        self._group: Any = None
        if count > 1:  # on CPUs, and of its own: neither a GPU nor the trainer's collectives wait for agents
            import torch.distributed as dist

            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    @classmethod
    def of(cls, trainer: Any) -> Ranks:
        """Those of a transformers Trainer."""
        at = trainer.accelerator
        return cls(int(at.process_index), int(at.num_processes), float(trainer.args.ddp_timeout))

    def gather(self, mine: Sequence[Any]) -> list[list[Any]]:
        """Process 0: what each process has, in their order. Elsewhere empty."""
        if self.count == 1:
            return [list(mine)]
        import torch.distributed as dist

        found: list[Any] | None = [None] * self.count if self.rank == 0 else None
        dist.gather_object(list(mine), found, dst=0, group=self._group)
        return found or []

    def each(self, lead: Callable[[], Sequence[T]], join: Callable[[], object]) -> T:
        """Process 0 runs `lead`, which returns one part for each process; every process returns its own. `join`: what
        the others do each time that process 0 calls `joined`. Raises what `lead` raised; in the other processes
        Unavailable with its words."""
        if self.count == 1:
            return lead()[0]
        return self._lead(lead) if self.rank == 0 else self._follow(join)

    def together(self, lead: Callable[[], object], join: Callable[[], object] = bool) -> None:
        """As `each`, with nothing to hand out: all wait until process 0 has done it."""

        def parts() -> list[None]:
            lead()
            return [None] * self.count

        self.each(parts, join)

    def still(self) -> None:
        """Within `lead`, now and then."""
        self._tell(Wait())

    def joined(self) -> None:
        """Within `lead`: from here on all processes do the same thing once."""
        self._tell(Join())

    def _lead(self, lead: Callable[[], Sequence[T]]) -> T:
        try:
            parts = lead()
            if len(parts) != self.count:
                raise Conflict(f"{len(parts)} parts for {self.count} processes")
        except BaseException as error:
            with suppress(Unavailable):  # the others may be gone, which may be why
                self._tell(Raised(f"{type(error).__name__}: {error}"))
            raise
        self._tell(Done())
        mine: T = self._scatter(list(parts))
        return mine

    def _follow(self, join: Callable[[], object]) -> Any:
        while True:
            match self._hear():
                case Wait():
                    continue
                case Join():
                    join()
                case Raised(why):
                    raise Unavailable(f"process 0: {why}")
                case Done():
                    return self._scatter(None)

    def _tell(self, message: Message) -> None:
        if self.count > 1:
            import torch.distributed as dist

            try:
                dist.broadcast_object_list([message], src=0, group=self._group)
            except RuntimeError as error:
                raise Unavailable(f"a training process is gone, or stuck: {error}") from error

    def _hear(self) -> Message:
        import torch.distributed as dist

        heard: list[Any] = [None]
        try:
            dist.broadcast_object_list(heard, src=0, group=self._group)
        except RuntimeError as error:
            raise Unavailable(f"process 0 is gone, or stuck: {error}") from error
        message: Message = heard[0]
        return message

    def _scatter(self, parts: list[Any] | None) -> Any:
        import torch.distributed as dist

        mine: list[Any] = [None]
        dist.scatter_object_list(mine, parts, src=0, group=self._group)
        return mine[0]
