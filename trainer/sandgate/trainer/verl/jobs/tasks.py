"""verl's prompts as tasks of a job: what the agent is given, and what only verifier and trainer may know. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sandgate.contract.errors import InvalidBody
from sandgate.contract.job import Task
from sandgate.trainer.client.task_values import json_of, prompt_of

KNOWN = ("data_source", "ability", "reward_model", "extra_info", "tools_kwargs", "index")
"""Columns that verl's data sets have, and verifiers may need."""
PUBLIC = ("agent_name",)
"""Columns that say nothing of the answer."""


def task_of(columns: Mapping[str, Any], *, public: Sequence[str] = (), further: Sequence[str] = ()) -> Task:
    """One prompt. A lone user message becomes its text, which is what most agents take; others stay messages.

    Agents see the prompt, and the `public` columns under `data.public`; the verifier sees `data` whole. `tools_kwargs`
    is not public unless it is named: verl's own recipes keep the answer there.

    Raises InvalidBody naming a column that is missing or is no JSON (images, tensors of objects)."""
    uid = str(columns["uid"])
    if columns.get("raw_prompt") is None:
        raise InvalidBody(f"prompt {uid}: it has no raw_prompt", field="raw_prompt")
    if missing := [name for name in (*public, *further) if name not in columns]:
        raise InvalidBody(f"prompt {uid}: its data set has no column {missing[0]}", field=missing[0])
    shown = {name: columns[name] for name in (*PUBLIC, *public) if columns.get(name) is not None}
    kept = {name: columns[name] for name in (*KNOWN, *further) if columns.get(name) is not None}
    data = {name: json_of(value, uid, name) for name, value in kept.items()}
    data["public"] = {name: json_of(value, uid, name) for name, value in shown.items()}
    return Task(uid=uid, prompt=prompt_of(json_of(columns["raw_prompt"], uid, "raw_prompt")), data=data)
