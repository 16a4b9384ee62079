"""docs/reference/records.md from the Trajectory dataclass and its Arrow schema: what trainers read, and its rules."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

import pyarrow as pa

from sandgate.contract import trajectory
from sandgate.trainer.export import schema
from scripts.generators.reasons import section

PATH = "docs/reference/records.md"
INTRO = f"""\
<!-- Generated from contract/sandgate/contract/trajectory.py and trainer/sandgate/trainer/export/schema.py
     by `make fix`. Do not edit. -->
# The trajectory record

Schema version {trajectory.SCHEMA_VERSION}. One row is one root-to-leaf path of a session's tree: one training row.
The same record travels as Arrow, Parquet, JSON lines, and in the control API's JSON.
"""
HEAD = ("field", "Arrow type", "shape", "unit", "null", "if missing", "meaning")
LAW = """\
## Laws

* `response_logprobs`, `loss_mask` and `versions` have one entry per id in `response_ids`.
* Where `loss_mask` is 1 the token was sampled by the policy in this session; its logprob and version are the engine's.
  Elsewhere they are 0.0 and -1.
* A sampled turn that several trajectories of a session share has mask 1 in one of them only: the first of
  those with the strongest role, main before subagent before side
  (`sharedNodes: once`, the default).
* JSON lines carry binary fields as base64; the control API leaves them out. JSON has no NaN: such a row is refused.
"""


def generate() -> dict[str, str]:
    said = docs(trajectory.Trajectory)
    rows = [
        (
            f"`{field.name}`", f"`{shown(field)}`", column.shape, column.unit,
            "yes" if field.nullable else "", default(field.name), said.get(field.name, ""),
        )
        for field, column in zip(schema.schema(), schema.COLUMNS.values(), strict=True)
    ]  # fmt: skip
    intro = " ".join((inspect.getdoc(trajectory.Trajectory) or "").split())
    legend = "Shapes: P tokens of prompt, R of response, K turns; none: one value a row."
    table = section("Fields", f"{intro}\n\n{legend}", HEAD, rows)
    return {PATH: "\n".join([INTRO, table, LAW, compatibility(schema, "Compatibility rule.")])}


def shown(field: Any) -> str:
    """`list<int32>` as everybody writes it."""
    kind = field.type
    text = f"list<{kind.value_type}>" if pa.types.is_list(kind) else str(kind)
    text = re.sub(r"\bfloat\b", "float32", text).replace("double", "float64")
    return "JSON string" if field.metadata else text


def default(name: str) -> str:
    """What a reader puts where an older file has no such column."""
    if name in trajectory.DERIVED:
        return "worked out"
    if name not in schema.DEFAULTS:
        return "refused"
    value = schema.DEFAULTS[name]
    return "null" if value is None else f"`{value!r}`"


def docs(described: type) -> dict[str, str]:
    """Field -> the string literal that follows it in the source of its class."""
    body = ast.parse(inspect.getsource(described)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for member, after in zip(body.body, body.body[1:], strict=False):
        match member, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def compatibility(module: Any, begins: str) -> str:
    """The rule, as the module that keeps it says it."""
    text = inspect.getdoc(module) or ""
    return f"## Compatibility\n\n{text[text.index(begins) + len(begins) :].strip()}\n"
