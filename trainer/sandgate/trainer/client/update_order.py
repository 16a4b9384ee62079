"""The order of weight updates, of two trainers that update at once: the one that began last has gateways and engines.
Gateways know it by the name that its pause brought; all order names alike. (pure)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sandgate.contract.errors import Conflict

SUPERSEDED = (
    "weight update {}: another one began since ({}): two trainers update at once. This one labels, tells and lets go"
    " on nothing more; turns go on when the other is through, or the next. Let one trainer update"
)


class Superseded(Conflict):
    """Another weight update began while this one was under way: two trainers update the same engines. Nothing was told
    or let go on by this one; the engines have the weights of whichever loaded last."""


def update_name(known: Iterable[str], own: str) -> str:
    """Of an update that begins behind those `known`. All order names alike, whichever they hear of first: of two that
    begin at once, knowing the same, the one with the greater `own` is the later. Where the newest is of the same `own`,
    it is taken again: of processes that update together, none is older than the others."""
    known = [*known]
    if own and (last := max(known, default="")).partition(".")[2] == own:
        return last
    numbers = (one.partition(".")[0] for one in known)
    newest = max((int(one) for one in numbers if one.isdecimal()), default=0)
    return f"{newest + 1:012d}.{own}"


def refused(error: BaseException) -> bool:
    """Whether a gateway said so of an update that another one began after."""
    return isinstance(error, Conflict) and error.field == "update"


def overtaken(name: str, told: Mapping[str, str]) -> list[str]:
    """Who was told of an update that began after the one of this name. `told`: the newest that each knows."""
    return [who for who, newest in told.items() if newest > name]
