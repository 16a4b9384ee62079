"""`sandgate show SESSION`: the tree of one session, its tokens told apart by their mask."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from sandgate.trainer.cli import output
from sandgate.trainer.cli.inspect import Context, KeyOption, Namespace, Out, Url
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.runs.sources import source, tree_of
from sandgate.trainer.runs.trees import Line, Tree, beside, lay_out, versions

SHOWN_CHARS = 400
"""Of one span, head and tail; system prompts are long and alike. --full shows all."""
STYLES = {0: "dim", 1: "bold green"}
"""By mask: context is not trained on, samples are."""
MARKS = {0: ("", ""), 1: ("«", "»")}
"""The same where there are no colours."""


def show(
    session: Annotated[
        str, typer.Argument(metavar="SESSION", help="Its id, or the beginning of it.", show_default=False)
    ],
    out: Out = None,
    url: Url = None,
    key: KeyOption = None,
    tokenizer: Annotated[
        str,
        typer.Option("--tokenizer", metavar="DIR", help="With --out: decode by this model folder."),
    ] = "",
    namespace: Namespace = "",
    context: Context = "",
    full: Annotated[bool, typer.Option("--full", help="Show every token of every span.")] = False,
    json: output.AsJson = False,
) -> None:
    """The session's tree: turns, parents, fork reasons, side calls and sub-agents, and tokens (sampled ones stand out
    from context)."""
    tree = tree_of(source(out, url, key, tokenizer, ClusterPlace(namespace, context)), session)
    if json:
        output.as_json(tree)
        return
    screen = output.console()
    for text in rendered(tree, colours=screen.color_system is not None, limit=None if full else SHOWN_CHARS):
        screen.print(text, soft_wrap=True)


def rendered(tree: Tree, *, colours: bool, limit: int | None) -> list[Text]:
    """The lines of `show`. Without colours sampled text stands between « and »."""
    head = f"{tree['session_id']}  job {tree['job'] or '-'}  task {tree['uid'] or '-'}  sample {tree['sample_index']}"
    head += f"  attempt {tree['attempt']}  {tree['state']}"
    counts = f"{len(tree['turns'])} turns"
    counts += (
        f", {tree['tokens']} tokens, {tree['sampled_tokens']} sampled, reward {output.cell(tree['reward'])}"
    )
    if tree["failure_reason"]:
        counts += f", {tree['failure_class']} failure {tree['failure_reason']}"
        counts += (
            f": {output.printable(' '.join(tree['failure_detail'].split()))}"
            if tree["failure_detail"]
            else ""
        )
    lines = [Text(head, "bold"), Text(counts)]
    for line in lay_out(tree):
        lines += _turn(line, colours=colours, limit=limit)
    return lines


def _turn(line: Line, *, colours: bool, limit: int | None) -> list[Text]:
    turn, margin = line.turn, "    " * line.depth
    context = turn["spans"][0]["ids"]
    title = Text(margin)
    title.append("│ " if line.continues else "┌ ", "dim")
    title.append(turn["turn"], "bold")
    title.append(
        f"  +{len(context)} context  {turn['sampled_tokens']} sampled  {turn['finish']}  {versions(turn)}"
    )
    if turn["fork"]:
        left = f" from {turn['parent']}" if turn["parent"] else ""
        title.append(f"  fork: {turn['fork']}{left}", "bold yellow")
    if role := beside(turn):
        title.append(f"  role: {output.printable(role, keep='')}", "bold cyan")
    for image in turn.get("images", ()):
        title.append(f"  image {image['digest'][:8]}", "cyan")
    for name in ("resampled", "resumed"):
        if turn[name]:
            title.append(f"  {name}", "yellow")
    if turn["delivered"] is not True:
        title.append("  partly delivered" if turn["delivered"] else "  not delivered", "yellow")
    body = Text()
    for span in turn["spans"]:
        body.append_text(_span(span, colours=colours, limit=limit))
    return [title, *(Text(f"{margin}│   ", "dim") + part for part in body.split("\n"))]


def _span(span: dict[str, Any], *, colours: bool, limit: int | None) -> Text:
    mask = span["mask"]
    text = span["text"] if "text" in span else " ".join(map(str, span["ids"]))
    if limit is not None and len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}…[{len(text) - 2 * half} characters]…{text[-half:]}"
    before, after = ("", "") if colours else MARKS[mask]
    return Text(f"{before}{output.printable(text)}{after}", STYLES[mask])
