"""Writes whether a job's spec is accepted or refused, of exactly the spec that was looked at.

The definition lets go of every field of a job that was refused. So nothing may be made of a spec while the API server
holds that it was refused, and nothing may be called refused that something was made of: each is written only if
nobody wrote the object since it was read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from sandgate.contract.errors import Conflict, NotFound, SandgateError
from sandgate.contract.job import RolloutJob
from sandgate.contract.status import RolloutJobStatus
from sandgate.operator.cluster.api import Api
from sandgate.operator.cluster.object_store import text_of
from sandgate.operator.cluster.refused_job import status_in
from sandgate.operator.cluster.status_writer import StatusWriter

log = logging.getLogger(__name__)

AGAIN_S = 5.0
"""Between tries where the API server is away."""
Says = Callable[[RolloutJobStatus | None], RolloutJobStatus]
"""The status to be written, by the one that is there."""


async def tell(kube: Api, writer: StatusWriter, generation: int, says: Says) -> RolloutJobStatus | None:
    """What is written; None if this is not the job's spec any more, or the job is gone. Tries until it is known."""
    while True:
        try:
            body = await kube.get(RolloutJob.KIND, writer.namespace, writer.name)
            meta = body["metadata"]
            if meta.get("uid") != writer.uid or int(meta.get("generation") or 0) != generation:
                return None
            writer.written = status_in(body)
            writer.want(status := says(writer.written))
            await writer.flush(version=text_of(body, "metadata", "resourceVersion"))
            return status
        except NotFound:
            return None
        except Conflict:  # somebody else wrote it meanwhile: perhaps its spec
            continue
        except (SandgateError, OSError, TimeoutError) as error:
            log.warning("job %s/%s: status waits: %s", writer.namespace, writer.name, error)
            await asyncio.sleep(AGAIN_S)
