"""A session's tree, for people and for trainers: the viewer's JSON, and the trajectories. (pure)"""

from __future__ import annotations

from sandgate.contract.trajectory import Json, Trajectory
from sandgate.gateway.conversation.turns import Turn
from sandgate.gateway.session import Phase, Session
from sandgate.gateway.tokens.api import Codec
from sandgate.gateway.trajectories.linearize import Facts, linearize

TEXT_CHARS_MAX = 200_000
"""Of one span in the viewer; ids are always complete."""


def tree_view(session: Session, codec: Codec | None) -> dict[str, Json]:
    """Turns in commit order. Each has spans of (mask, ids, text): the context it added (0), what was sampled (1)."""
    return {**session.summary(), "turns": [_turn(session, turn, codec) for turn in session.tree.turns]}


def _turn(session: Session, turn: Turn, codec: Codec | None) -> dict[str, Json]:
    def span(mask: int, ids: list[int]) -> dict[str, Json]:
        out: dict[str, Json] = {"mask": mask, "ids": ids}
        if codec is not None:
            out["text"] = codec.decode(turn.ids if mask else turn.context)[:TEXT_CHARS_MAX]
        return out

    return {
        "turn": turn.id,
        "parent": turn.parent,
        "fork": turn.fork,
        "finish": turn.finish,
        "stop_reason": turn.stop_reason,
        "prompt_tokens": turn.prompt_tokens,
        "sampled_tokens": len(turn.ids),
        "versions": [list(one) for one in turn.versions],
        "logprob_sum": sum(turn.logprobs),
        "delivered": turn.id in session.delivered,
        "resampled": turn.resampled,
        "resumed": turn.resumed,
        "notes": list(turn.notes),
        "engine": turn.engine,
        "sampling": turn.sampling,
        "at": turn.at,
        "spans": [span(0, turn.context.tolist()), span(1, turn.ids.tolist())],
        "logprobs": turn.logprobs.tolist(),
    }


def trajectories_of(session: Session, facts: Facts) -> list[Trajectory]:
    """One row per leaf of a finalized session, in order of each leaf's commit; none of any other."""
    if session.phase is not Phase.FINALIZED or session.sealed is None:
        return []
    return linearize(
        session.tree.turns,
        session_id=session.session_id,
        spec=session.spec,
        sealed=session.sealed,
        delivered=session.delivered,
        rewarded=session.rewards,
        completed=session.completed.info if session.completed else None,
        facts=facts,
    )
