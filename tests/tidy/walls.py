"""The walls between rooms, as tables. Module names are without `sandgate.` in front; `*` is a shell's `*`.

A module is **pure** unless it is listed in SHELL. Whoever needs I/O, a clock, randomness or asyncio in a new place adds
a line here, and so says it aloud in review. (The layers of rooms are import-linter's, in pyproject.toml.)
"""

from __future__ import annotations

SHELL = (
    "contract.descriptors",
    "gateway.app",
    "gateway.service.areal",
    "gateway.__main__",
    "gateway.config",
    "gateway.client",
    "gateway.client.*",
    "gateway.service.turn_records",
    "gateway.offline",
    "gateway.service.gateway_service",
    "gateway.service.call",
    "gateway.service.waking",
    "gateway.service.leasing",
    "gateway.service.prompts",
    "gateway.service.admission",
    "gateway.service.call_registry",
    "gateway.service.choice_sampler",
    "gateway.service.fetched_images",
    "gateway.media.fetch",
    "gateway.service.completion",
    "gateway.service.retelling",
    "gateway.service.turn_committer",
    "gateway.service.core_time",
    "gateway.service.fair_pool",
    "gateway.service.turn_order",
    "gateway.service.sessions",
    "gateway.service.retired_lines",
    "gateway.metrics",
    "gateway.journal.durable_folders",
    "gateway.delivery.file_output",
    "gateway.delivery.storage",
    "gateway.web.*",
    "gateway.engine.pool",
    "gateway.engine.silence",
    "gateway.engine.dialect",
    "gateway.engine.vllm",
    "gateway.engine.sglang.engine",
    "gateway.engine.sglang.control",
    "gateway.engine.factory",
    "gateway.engine.connection",
    "gateway.engine.connections",
    "gateway.engine.transport",
    "gateway.engine.tries",
    "gateway.engine.weights",
    "gateway.engine.health",
    "gateway.engine.load",
    "gateway.engine.facts",
    "gateway.engine.logprobs_check",
    "gateway.engine.control",
    "gateway.engine.scripted.script",
    "gateway.engine.scripted.engine",
    "gateway.engine.scripted.server",
    "gateway.engine.scripted.serving",
    "gateway.engine.scripted.sglang_server",
    "gateway.tokens.load",
    "gateway.journal.sqlite",
    "gateway.journal.room",
    "gateway.journal.group_commit",
    "gateway.journal.postgres",
    "gateway.journal.postgres_connection",
    "operator.driver.*",
    "operator.local.*",
    "operator.replica.*",
    "operator.__main__",
    "operator.kubernetes.access",
    "operator.cluster.*",
    "operator.command",
    "operator.kubernetes.client",
    "sandbox.entry",
    "sandbox.guard",
    "sandbox.keeper",
    "sandbox.logs",
    "sandbox.own",
    "sandbox.process",
    "sandbox.procfs",
    "trainer",
    "trainer.*",
)
"""Modules that act: they may do I/O, read the clock, draw numbers, use asyncio."""

PURE_IN_SHELL = (
    "gateway.client.retries",
    "trainer.client.task_values",
    "trainer.client.update_order",
    "trainer.client.weight_files",
    "trainer.credit.lengths",
    "trainer.credit.reasons",
    "trainer.credit.group_advantages",
    "trainer.credit.batches",
    "trainer.credit.one_row",
    "trainer.credit.samples",
    "trainer.credit.shared_turns",
    "trainer.trl.names",
    "trainer.trl.rows",
    "trainer.verl.jobs.tasks",
    "operator.cluster.agent_end",
    "operator.cluster.health",
    "operator.cluster.recovery",
    "operator.cluster.refusals",
    "operator.cluster.refused_job",
    "operator.cluster.session_status",
    "operator.cluster.object_store",
)
"""Exceptions from a `*` above."""

IMPURE = frozenset(
    "asyncio threading multiprocessing concurrent subprocess signal select selectors socket ssl http urllib.request"
    " time random secrets uuid os shutil tempfile sqlite3 logging"
    " aiohttp httpx requests anyio uvicorn uvloop fastapi starlette prometheus_client kopf kubernetes"
    " websocket ray".split()
)
"""What a pure module may not import: clocks, chance, files and sockets arrive as arguments."""

IMPURE_CALLS = frozenset(
    "open print input breakpoint datetime.now datetime.utcnow datetime.today date.today"
    " datetime.datetime.now datetime.datetime.utcnow datetime.date.today".split()
)

FRONT_DOORS = {
    "gateway": ("gateway.client", "gateway.offline"),
    "sandbox": ("sandbox.agents", "sandbox.own", "sandbox.process"),
    "operator": (
        "operator.driver.reconcile",
        "operator.manifests",
        "operator.local.fresh",
        "operator.local.job",
        "operator.local.preflight",
        "operator.local.serve",
    ),
    "contract": ("contract", "contract.*"),
}
"""Room -> the modules that other rooms may import."""

SIDE_DOORS = {
    "trainer.client.weight_update": ("gateway.engine.control", "gateway.engine.sglang.control"),
    "trainer.trl.served": (
        "gateway.engine.control",
        "gateway.engine.labels",
    ),  # adapters, as weights are above
    "trainer.testing": (
        "gateway.app",
        "gateway.config",
        "gateway.engine.scripted.engine",
        "gateway.engine.scripted.server",
    ),
    "trainer.ray.actor": ("gateway.app", "gateway.config"),
    "trainer.verl.settings": ("gateway.config",),
    "trainer.verl.engine": ("gateway.engine.api", "gateway.engine.responses", "gateway.engine.generation"),
    "trainer.verl.jobs.relay": ("gateway.engine.logprobs",),
    "trainer.runs.preflight": ("gateway.tokens.load", "gateway.engine.factory"),
    "trainer.doctor.*": (
        "gateway.tokens.load",
        "gateway.tokens.api",
        "gateway.tokens.tool_support",
        "gateway.conversation.messages",
        "gateway.engine.api",
        "gateway.engine.labels",
        "gateway.engine.logprobs",
        "gateway.engine.wire",
        "gateway.engine.sglang.wire",
        "gateway.engine.sglang.logprobs",
        "gateway.engine.sglang.server_info",
    ),
    "trainer.cli": ("gateway.app", "gateway.config", "gateway.engine.scripted.engine", "operator.command"),
    "trainer.cli.*": ("gateway.app", "gateway.config", "gateway.engine.scripted.engine", "operator.command"),
}
"""Importer -> further modules that it alone may import: composition roots, which start whole rooms."""

HOMES = {
    "kopf": ("operator.cluster.watches",),
    "aiohttp": (
        "gateway.client.control_client",
        "gateway.engine.transport",
        "gateway.engine.scripted.server",
        "gateway.engine.scripted.serving",
        "gateway.engine.scripted.sglang_server",
        "gateway.media.fetch",
        "operator.kubernetes.client",
        "operator.replica.probes",
        "trainer.verl.jobs.relay",
    ),
    "httpx_aiohttp": ("gateway.client.control_client",),
    "fastapi": ("gateway.web.*", "gateway.app"),
    "starlette": ("gateway.web.*", "gateway.app"),
    "uvicorn": ("gateway.web.*", "gateway.app"),
    "uvloop": ("gateway.app",),
    "tokenizers": ("gateway.tokens.*",),
    "renderers": ("gateway.tokens.*",),
    "jinja2": ("gateway.tokens.*",),
    "transformers": ("gateway.tokens.*", "trainer.verl.*", "trainer.trl.callback"),
    "prometheus_client": ("gateway.metrics", "gateway.web.*", "operator.replica.metrics"),
    "kubernetes": ("trainer.client.cluster", "trainer.client.port_forward"),
    "websocket": ("trainer.client.port_forward",),
    "PIL": ("gateway.media.pictures", "trainer.verl.multimodal", "trainer.verl.videos"),
    "psycopg": ("gateway.journal.postgres", "gateway.journal.postgres_connection"),
    "torch": (
        "trainer.export.*",
        "trainer.cli.tensor_files",
        "trainer.verl.*",
        "trainer.areal.tensors",
        "trainer.trl.callback",
        "trainer.trl.ranks",
        "trainer.trl.adapters",
        "trainer.trl.lora",
    ),
    "peft": ("trainer.trl.adapters", "trainer.trl.lora"),
    "pyarrow": (
        "trainer.export.*",
        "trainer.client.lag",
        "gateway.delivery.arrow",
        "gateway.delivery.parquet",
        "gateway.delivery.storage",
    ),
    "fsspec": ("gateway.delivery.storage",),
    "verl": ("trainer.export.*", "trainer.verl.*"),
    "areal": ("trainer.areal.job",),
    "skyrl": ("trainer.skyrl.generator",),
    "ray": ("trainer.export.*", "trainer.ray.*", "trainer.verl.*"),
    "tensordict": ("trainer.verl.*",),
    "tinker": ("trainer.tinker",),
    "transfer_queue": ("trainer.verl.*",),
    "omegaconf": ("trainer.verl.*",),
    "safetensors": ("trainer.verl.multimodal",),
    "datasets": ("trainer.trl.rollouts",),
    "typer": ("trainer.cli", "trainer.cli.*"),
    "rich": ("trainer.cli", "trainer.cli.*"),
}
"""Third party -> the only modules that know it."""

FRAMEWORKS = frozenset(
    "torch verl areal skyrl tinker ray tensordict transfer_queue transformers omegaconf safetensors datasets peft"
    " pytest".split()
)
"""What a user brings along; imported inside the function that needs it, and so in no extra."""
