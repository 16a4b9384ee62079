"""The tree itself: growing, reading, and finding by ids."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from sandgate.contract.errors import CorruptRecord
from sandgate.contract.fork_reason import ForkReason
from sandgate.gateway.conversation.messages import Message, TurnRequest
from sandgate.gateway.conversation.tree import Tree
from sandgate.gateway.journal import records
from tests.gateway.conversation.talk import Talk, assistant, echo, request, says, system, user

HI, ON = user("hi"), user("on")
YES, NO = says("yes"), says("no")


def forked() -> Talk:
    """t0 -> t1 -> t3, t0 -> t2 (another tail), t4 (a root of its own)."""
    talk = Talk()
    first = (HI, echo("t0", YES))
    talk.say(request(HI), YES)
    talk.say(request(*first, ON), YES)
    talk.say(request(*first, user("off")), NO)
    talk.say(request(*first, ON, echo("t1", YES), ON), NO)
    talk.say(request(system("other"), user("ho")), NO)
    return talk


def test_turns_come_in_order_of_commit_and_know_their_parents() -> None:
    tree = forked().tree
    assert [(turn.id, turn.number, turn.parent, turn.fork) for turn in tree.turns] == [
        ("t0", 0, None, None),
        ("t1", 1, "t0", None),
        ("t2", 2, "t0", "user_or_tool_edited"),
        ("t3", 3, "t1", None),
        ("t4", 4, None, "new_root"),
    ]
    assert [turn.id for turn in tree.leaves()] == ["t2", "t3", "t4"]
    assert [turn.id for turn in tree.path("t3")] == ["t0", "t1", "t3"]
    assert [turn.id for turn in tree.children("t0")] == ["t1", "t2"]
    assert [turn.id for turn in tree.children(None)] == ["t0", "t4"]
    assert len(tree) == 5
    assert "t4" in tree
    assert "t5" not in tree


def test_a_path_is_context_and_sample_turn_by_turn() -> None:
    tree = forked().tree
    assert tree.path_ids("t3") == array("i", [0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 30, 31, 32, 33, 34])


def test_a_path_is_the_callers_to_change() -> None:
    tree = forked().tree
    tree.path_ids("t0").append(99)
    assert tree.path_ids("t0") == array("i", [0, 1, 2, 3, 4])


def test_arrays_are_the_journals() -> None:
    turn = forked().tree["t1"]
    assert (turn.context, turn.ids) == (array("i", [10, 11]), array("i", [12, 13, 14]))
    assert turn.logprobs == array("f", [-0.5, -0.25, 0.0])


FIND_IDS = {
    "the deepest turn": ([0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 7], "t1"),
    "of several children": ([0, 1, 2, 3, 4, 20, 21, 22, 23, 24], "t2"),
    "of several roots": ([40, 41, 42, 43, 44, 5], "t4"),
    "a parent whose child is cut": ([0, 1, 2, 3, 4, 10, 11, 12, 13], "t0"),
    "no root": ([1, 2, 3], None),
}


@pytest.mark.parametrize(("prompt", "turn"), FIND_IDS.values(), ids=FIND_IDS)
def test_find_ids(prompt: list[int], turn: str | None) -> None:
    found = forked().tree.find_ids(array("i", prompt))
    assert (found.id if found else None) == turn


def test_find_ids_goes_on_below_the_elder_of_two_turns_with_the_same_ids() -> None:
    """Greedy sampling answers a retry with the very ids; the conversation went on from the first answer."""
    talk = forked()
    same = {"context": talk.records[1].context, "ids": talk.records[1].ids}
    twin = talk.say(request(HI, echo("t0", YES), ON), YES, **same)
    deeper = array("i", [0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 30, 31, 32, 33, 34])
    found = talk.tree.find_ids(deeper)
    assert found is not None
    assert found.id == "t3"
    found = talk.tree.find_ids(deeper[:10])
    assert found is not None
    assert found.id == twin


def test_find_ids_in_an_empty_tree() -> None:
    assert Tree().find_ids(array("i", [1])) is None


def test_apply_twice_changes_nothing() -> None:
    talk = forked()
    before = [turn.id for turn in talk.tree.turns], [turn.id for turn in talk.tree.leaves()]
    for record in talk.records:
        talk.tree.apply(record)
    assert ([turn.id for turn in talk.tree.turns], [turn.id for turn in talk.tree.leaves()]) == before
    assert [turn.id for turn in talk.tree.children("t0")] == ["t1", "t2"]


def test_two_turns_of_one_name_are_refused() -> None:
    talk = forked()
    with pytest.raises(CorruptRecord, match="two turns are called t1"):
        talk.tree.apply(msgspec.structs.replace(talk.records[1], digest=b"other"))


def test_a_turn_of_an_unknown_parent_is_refused() -> None:
    talk = forked()
    with pytest.raises(CorruptRecord, match="t9 extends gone"):
        talk.tree.apply(msgspec.structs.replace(talk.records[1], turn="t9", parent="gone"))


def test_a_replay_from_the_journals_bytes_finds_what_the_live_tree_finds() -> None:
    talk = forked()
    replayed = Tree()
    for record in talk.records:
        again = records.decode(records.encode(record))
        assert isinstance(again, records.TurnCommitted)
        replayed.apply(again)
    first = (HI, echo("t0", YES), ON, echo("t1", YES))
    for asked in (
        request(*first),
        request(*first, ON),
        request(*first[:2], user("out")),
        request(HI),
        request(ON),
    ):
        assert replayed.find(asked) == talk.tree.find(asked)


def test_find_changes_nothing() -> None:
    talk = forked()
    asked = request(HI, echo("t0", YES), user("out"))
    assert talk.find(asked) == talk.find(asked)
    assert len(talk.tree) == 5


def test_a_turn_that_was_rendered_in_full_is_found_by_its_echo() -> None:
    """template_not_additive: the record has no parent, but its request echoed t0."""
    talk = forked()
    asked = (HI, echo("t0", YES), user("odd"))
    turn = talk.say(request(*asked), NO, parent=None, fork="template_not_additive")
    match = talk.find(request(*asked, echo(turn, NO), ON))
    assert (match.parent, match.tail, match.fork) == (turn, 4, None)
    assert [one.id for one in talk.tree.path(turn)] == [turn]


def test_choices_of_one_request_are_siblings() -> None:
    talk = Talk()
    match = talk.find(request(HI))
    one, two = (talk.commit(match, reply, index=index) for index, reply in enumerate((YES, NO)))
    assert [turn.id for turn in talk.tree.children(None)] == [one, two]
    assert talk.find(request(HI, assistant("yes"), ON)).parent == one
    assert talk.find(request(HI, assistant("no"), ON)).parent == two


FEW_SHOT = (user("2+2"), assistant("4"), user("3+3"))
FOREIGN: dict[str, tuple[Message, ...]] = {
    "few-shot examples before the first turn": FEW_SHOT,
    "an example right before the turn": (user("2+2"), assistant("It is")),
    "an example in two messages": (user("2+2"), assistant("It"), assistant("is"), user("3+3")),
    "many assistant messages in a row": (HI, *[assistant(f"line {at}") for at in range(20)], ON),
}


@pytest.mark.parametrize("asked", FOREIGN.values(), ids=FOREIGN)
def test_words_that_were_not_sampled_here_are_part_of_the_prompt(asked: tuple[Message, ...]) -> None:
    talk = Talk()
    turn = talk.say(request(*asked), YES)
    match = talk.find(request(*asked, assistant("yes"), ON))
    assert (match.parent, match.tail, match.fork) == (turn, len(asked) + 1, None)
    changed = tuple(assistant("No") if one.role == "assistant" else one for one in asked)
    assert talk.find(request(*changed, assistant("yes"), ON)).parent is None


def test_a_turn_asked_right_after_another_is_its_child() -> None:
    """The client sends the answer back and asks for more, without a word of its own."""
    talk = Talk()
    talk.say(request(HI), says("one"))
    match = talk.find(request(HI, assistant("one")))
    assert (match.parent, match.tail, match.fork) == ("t0", 2, None)
    talk.commit(match, says("two"))
    match = talk.find(request(HI, assistant("one"), assistant("two"), ON))
    assert (match.parent, match.tail, match.fork) == ("t1", 3, None)


def test_a_retry_joins_the_parent_it_had_even_if_a_twin_came_since() -> None:
    talk = Talk()
    talk.say(request(HI), YES)
    asked = request(HI, assistant("yes"), ON)
    talk.say(asked, NO)
    talk.say(request(HI), YES)
    match = talk.find(asked)
    assert (match.parent, match.fork) == ("t0", ForkReason.RETRY_RESAMPLED)


def test_a_thousand_twins_do_not_hide_the_one_that_went_on() -> None:
    talk = Talk()
    talk.say(request(HI), YES)
    talk.say(request(HI, assistant("yes"), ON), NO)
    for _ in range(1000):
        talk.say(request(HI), YES)
    match = talk.find(request(HI, assistant("yes"), ON, assistant("no"), ON))
    assert (match.parent, match.fork) == ("t1", None)


ODD: dict[str, TurnRequest] = {
    "no messages": TurnRequest(model="m", messages=()),
    "only a system prompt": request(system("be")),
    "only an answer": request(assistant("yes")),
    "a tool message out of nowhere": request(Message("tool", tool_call_id=None)),
    "an empty user message": request(Message("user")),
}


@pytest.mark.parametrize("asked", ODD.values(), ids=ODD)
def test_odd_requests_are_found_again_too(asked: TurnRequest) -> None:
    talk = forked()
    turn = talk.say(asked, says("well"))
    match = talk.find(request(*asked.messages, assistant("well"), ON))
    assert (match.parent, match.fork) == (turn, None)


def test_turns_without_messages_live_beside_the_others() -> None:
    """Token ingress commits turns whose request had no messages, and so no blocks."""
    talk = forked()
    talk.say(request(user("ids")), NO, blocks=(), prompt_key=b"ids", head_key=b"")
    match = talk.find(request(user("news")))
    assert match.parent is None
    assert match.fork in (ForkReason.NEW_ROOT, ForkReason.SIDE_CALL)
