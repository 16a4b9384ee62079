"""Reads manifests as people write them: YAML to RolloutJob, with errors that name file, line and field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from sandgate.contract.errors import BadManifest
from sandgate.contract.job import RolloutJob
from sandgate.contract.manifest_decoder import DEPTH_MAX, decode, says

MANIFEST_BYTES_MAX = 4 << 20
"""A larger manifest would not fit into etcd either (1.5 MiB); tasks belong into a file."""
NODES_MAX = 200_000
"""YAML nodes after aliases are expanded: a billion laughs are a few hundred bytes of text."""

_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def load_job(path: Path) -> RolloutJob:
    """The RolloutJob of a YAML file. Raises BadManifest naming file, line and field."""
    try:
        with path.open("rb") as file:
            raw = file.read(MANIFEST_BYTES_MAX + 1)
    except OSError as error:
        raise BadManifest(f"{path}: {error.strerror or error}") from error
    if len(raw) > MANIFEST_BYTES_MAX:
        raise BadManifest(f"{path}: larger than {MANIFEST_BYTES_MAX >> 20} MiB; put the tasks into a file")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadManifest(f"{path}: not UTF-8 text (byte {error.start})") from error
    return parse_job(text, str(path))


def parse_job(text: str, source: str = "manifest") -> RolloutJob:
    """The one RolloutJob of `text`; other kinds of objects in it are skipped. Raises BadManifest.

    `source` is named in errors; `field` of the error is the path in the manifest, its text ends in `(source:line)`.
    """
    node, value = _job(text, source)
    try:
        return decode(RolloutJob, value)
    except BadManifest as error:
        raise BadManifest(
            f"{error} ({source}:{line_of(node, error.field or '')})", field=error.field
        ) from None


def place_of(path: Path, field: str) -> str:
    """`FILE:LINE` of a field of a manifest, or of the deepest part of it that is written down; empty if the file cannot
    be read (any more)."""
    try:
        node, _ = _job(path.read_bytes().decode("utf-8-sig"), str(path))
    except (OSError, UnicodeDecodeError, BadManifest):
        return ""
    return f"{path}:{line_of(node, field)}"


def _job(text: str, source: str) -> tuple[yaml.Node, dict[str, Any]]:
    if len(text) > MANIFEST_BYTES_MAX:
        raise BadManifest(f"{source}: larger than {MANIFEST_BYTES_MAX >> 20} MiB; put the tasks into a file")
    found, others = [], []
    for node in _documents(text, source):
        _check(node, source)
        value = _value(node, source)
        if value is None:
            continue
        if not isinstance(value, dict):
            raise BadManifest(f"{source}:{_line(node)}: not a manifest: there is no apiVersion and kind")
        if "kind" not in value:
            raise BadManifest(f"kind: is missing ({source}:{_line(node)})", field="kind")
        if value["kind"] == RolloutJob.KIND:
            found.append((node, value))
        else:
            others.append(_near(value["kind"], source, node))
    if len(found) != 1:
        near = "" if found else "".join(others)
        raise BadManifest(
            f"{source}: holds {len(found) or 'no'} objects of kind RolloutJob; one is needed{near}",
            field="kind",
        )
    return found[0]


def _near(kind: Any, source: str, node: yaml.Node) -> str:
    """`; FILE:LINE has KIND`, if it is nearly that of a job."""
    if not isinstance(kind, str) or not difflib.get_close_matches(
        kind.lower(), [RolloutJob.KIND.lower()], n=1
    ):
        return ""
    return f"; {source}:{line_of(node, 'kind')} has {says(kind)}; did you mean {RolloutJob.KIND}?"


def line_of(node: yaml.Node, field: str) -> int:
    """Line (from 1) of the deepest part of `field` that is written down."""
    line = _line(node)
    for index, name in _PART.findall(field):
        if isinstance(node, yaml.MappingNode) and name:
            at = [(key, value) for key, value in node.value if getattr(key, "value", None) == name]
            if not at:
                break
            line, node = _line(at[0][0]), at[0][1]
        elif isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
            node = node.value[int(index)]
            line = _line(node)
        else:
            break
    return line


def _documents(text: str, source: str) -> Iterator[yaml.Node]:
    try:
        yield from yaml.compose_all(text, Loader=yaml.SafeLoader)
    except yaml.reader.ReaderError as error:
        where = f"{source}:{text.count(chr(10), 0, error.position) + 1}"
        raise BadManifest(f"{where}: not YAML: U+{error.character:04X} may not stand in it") from None
    except yaml.YAMLError as error:
        raise BadManifest(_yaml_says(error, source)) from None
    except RecursionError:
        raise BadManifest(f"{source}: is nested too deeply") from None


class _Loader(yaml.SafeLoader):
    """Names the line of a value that is not what it is written or tagged as: 2024-13-45, an int of 5000 digits,
    !!int x. yaml has no error of its own for these."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, TypeError, LookupError, AttributeError) as error:
            what = f"{says(node.value)} is no {node.tag.rpartition(':')[2]}; quote it"
            raise yaml.constructor.ConstructorError(None, None, what, node.start_mark) from error


def _value(node: yaml.Node, source: str) -> Any:
    loader = _Loader("")
    try:
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise BadManifest(_yaml_says(error, source)) from None
    finally:
        loader.dispose()


def _check(root: yaml.Node, source: str) -> None:
    """Duplicate keys (YAML lets the last one win, silently), depth, and size after aliases."""
    seen = 0
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        seen += 1
        if seen > NODES_MAX or depth > 2 * DEPTH_MAX:
            what = "too much" if seen > NODES_MAX else "too deep"
            raise BadManifest(f"{source}:{_line(node)}: {what}; are aliases nested?")
        if isinstance(node, yaml.SequenceNode):
            stack += [(one, depth + 1) for one in node.value]
        elif isinstance(node, yaml.MappingNode):
            names: set[str] = set()
            for key, value in node.value:
                name = key.value if isinstance(key, yaml.ScalarNode) else ""
                if name in names and name != "<<":
                    raise BadManifest(f"{name}: stands there twice ({source}:{_line(key)})", field=name)
                names.add(name)
                stack += [(key, depth + 1), (value, depth + 1)]


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _yaml_says(error: yaml.YAMLError, source: str) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"{source}:{mark.line + 1}" if mark is not None else source
    problem = getattr(error, "problem", None) or error
    return f"{where}: not YAML: {problem}"
