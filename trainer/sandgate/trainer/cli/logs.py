"""`sandgate logs SESSION`: what its agent or its verifier printed."""

from __future__ import annotations

import codecs
import sys
from typing import Annotated

import typer

from sandgate.contract.errors import InvalidBody
from sandgate.trainer.cli import output
from sandgate.trainer.cli.inspect import Context, Namespace, Out
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.runs.logs import Program, of_cluster, of_run


def logs(
    session: Annotated[
        str, typer.Argument(metavar="SESSION", help="Its id, or the beginning of it.", show_default=False)
    ],
    out: Out = None,
    verifier: Annotated[bool, typer.Option("--verifier", help="The verifier's, not the agent's.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more is printed.")] = False,
    namespace: Namespace = "",
    context: Context = "",
    json: output.AsJson = False,
) -> None:
    """What the session's agent printed."""
    if not session:
        raise InvalidBody("is empty; say a session's id or the beginning of one", field="SESSION")
    if json and follow:
        raise InvalidBody("a document has an end: say --json or --follow", field="--follow")
    program = Program.VERIFIER if verifier else Program.AGENT
    if out is not None:
        chunks = of_run(out, session, program, follow=follow)
    else:
        chunks = of_cluster(session, program, ClusterPlace(namespace, context), follow=follow)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = (decoder.decode(chunk) for chunk in chunks)
    if json:
        output.as_json({"program": program.value, "log": "".join(texts)})
        return
    terminal = sys.stdout.isatty()
    for text in texts:
        # What an agent prints may be meant to steer its reader's terminal.
        typer.echo(output.printable(text) if terminal else text, nl=False)
