"""What deleted jobs leave in a shared database, and the statement of docs/journals.md that takes it away."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

from sandgate.gateway.journal.postgres import PostgresStore
from sandgate.gateway.journal.records import TurnCommitted
from tests.gateway.journal.samples import turn
from tests.support import postgres

DOCS = Path(__file__).parents[3] / "docs" / "journals.md"


def sweep(live: str) -> str:
    """As psql would send it."""
    (statement,) = re.findall(r"```sql\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    assert statement.count(":'live'") == 1
    return str(statement.replace(":'live'", f"'{live}'"))


async def test_the_documented_statement_deletes_what_deleted_jobs_left_and_nothing_else(
    postgres_server: postgres.Server,
) -> None:
    ours = f"ns-{uuid.uuid4()}"
    gone, kept, used = (f"{ours}/shop-gateway-0/{uid}" for uid in ("gone", "kept", "used"))
    for name in (gone, kept):
        async with await PostgresStore.open(postgres_server.dsn, name) as store:
            await store.append("s", turn("t"))
    async with await PostgresStore.open(postgres_server.dsn, used) as store:
        await store.append("s", turn("t1"))
        postgres_server.sql(sweep("another kept"))
        await store.append("s", turn("t2"))
        assert [one.turn for _, _, one in store.scan() if isinstance(one, TurnCommitted)] == ["t1", "t2"]
    for table, column in (("sandgate_journals", "name"), ("sandgate_records", "journal")):
        left = postgres_server.sql(
            f"SELECT DISTINCT {column} FROM {table} WHERE {column} LIKE %s", f"{ours}/%"
        )
        assert {name for (name,) in left} == {kept, used}
    postgres_server.sql(sweep(""))
    assert not postgres_server.sql("SELECT 1 FROM sandgate_records WHERE journal LIKE %s", f"{ours}/%")
