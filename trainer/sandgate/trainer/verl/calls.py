"""How verl's trainers call an agent loop manager: with prompts of v0 or v1, with and without await."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from sandgate.trainer.verl.timing import timed


class GeneratesSequences:
    """The call of both of our managers, and what they count; `worker` is the Ray actor that does it."""

    worker: Any

    def generate_sequences(self, prompts: Any) -> Any:
        """verl v1 (TensorDict): returns None at once, rows come through TransferQueue. v0 (DataProto): waits, and gives
        exactly one row per prompt, with verl's timing in meta_info. A coroutine may await it, as verl's one-step
        off-policy trainer does; whoever calls it without await gets the batch."""
        import ray  # type: ignore[import-not-found]
        from verl import DataProto  # type: ignore[import-not-found]

        if not isinstance(prompts, DataProto):
            ray.get(self.worker.submit.remote(prompts))
            return None
        if sys._getframe(1).f_code.co_flags & inspect.CO_COROUTINE:  # verl's own rule: `auto_await`
            return self._generate(prompts)
        return timed(ray.get(self.worker.generate.remote(prompts)))

    def metrics(self) -> dict[str, float]:
        """Rows that teach, and rows that do not, by reason, since the start; for a trainer's log."""
        import ray

        found: tuple[dict[str, float], str] = ray.get(self.worker.rows.remote())
        return found[0]

    def prometheus(self) -> str:
        """The same in Prometheus' text format."""
        import ray

        found: tuple[dict[str, float], str] = ray.get(self.worker.rows.remote())
        return found[1]

    async def _generate(self, prompts: Any) -> Any:
        return timed(await self.worker.generate.remote(prompts))
