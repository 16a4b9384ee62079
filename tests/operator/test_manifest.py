"""YAML as people write it: errors name file, line and field."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import yaml

from sandgate.contract.errors import BadManifest, Unsupported
from sandgate.contract.job import RolloutJob, TasksSpec
from sandgate.contract.manifest_decoder import decode
from sandgate.operator.cluster.tasks import fixed_tasks
from sandgate.operator.driver.tasks import LINE_CHARS_MAX, load_tasks
from sandgate.operator.local.manifest import MANIFEST_BYTES_MAX, load_job, parse_job
from tests.contract.manifests import GOOD, spoilt
from tests.operator.fake_kube import FakeKube

TEXT = """\
# a comment
apiVersion: sandgate.dev/v1alpha1
kind: RolloutJob
metadata: {name: shop}
spec:
  model: {name: tiny, tokenizer: model}
  engine:
    endpoints:
      - http://127.0.0.1:8000
  tasks:
    inline:
      - uid: q1
        prompt: buy 7 kiwi
      - uid: q2
        prompt: sell 2 tea
  groupSize: 4
  agent:
    template:
      spec:
        containers:
          - name: agent
            command: [python, agent.py]
"""


def test_a_good_manifest_is_read() -> None:
    assert parse_job(TEXT).spec.group_size == 4
    assert parse_job(yaml.safe_dump(GOOD)).metadata.name == "shop"


LINES = {
    "a value": ("groupSize: 4", "groupSize: 0", "spec.groupSize: 0 is below 1", 16),
    "in a list": ("uid: q2", "uid: 2", "spec.tasks.inline[1].uid: must be text", 14),
    "a misspelt field": ("groupSize:", "groupsize:", "did you mean groupSize?", 16),
    "a field that is missing is looked for in its parent": (
        "name: tiny, ",
        "",
        "spec.model.name: is missing",
        6,
    ),
    "in an embedded pod": ("[python, agent.py]", "[]", "containers[0].command: must not be empty", 22),
    "twice": ("  groupSize: 4", "  groupSize: 4\n  groupSize: 5", "groupSize: stands there twice", 17),
}


@pytest.mark.parametrize(("good", "bad", "says", "line"), LINES.values(), ids=LINES)
def test_errors_name_the_line(good: str, bad: str, says: str, line: int) -> None:
    with pytest.raises(BadManifest) as refused:
        parse_job(TEXT.replace(good, bad), "job.yaml")
    assert says in str(refused.value)
    assert str(refused.value).endswith(f"(job.yaml:{line})")


NOT_ONE = {
    "nothing": ("", "holds no objects of kind RolloutJob"),
    "only a comment": ("# nothing\n", "holds no objects"),
    "another kind": ("kind: Pod\n", "holds no objects"),
    "nearly a job's kind": (
        "a: 1\nkind: RolloutJobs\n",
        "job.yaml:2 has 'RolloutJobs'; did you mean RolloutJob?",
    ),
    "two jobs": (TEXT + "---\n" + TEXT, "holds 2 objects"),
    "no kind": ("a: 1\n", "kind: is missing"),
    "a list": ("- a\n", "not a manifest"),
    "a text": ("hello", "not a manifest"),
    "not YAML": ("a: [1\n", "not YAML"),
    "a tab": ("a:\n\tb: 1\n", "not YAML"),
    "a Python object": ("kind: !!python/object:os.system {}\n", "not YAML"),
    "an alias of itself": ("kind: &a [*a]\n", "are aliases nested?"),
    "a billion laughs": (
        "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]\n" for n in range(9)),
        "are aliases nested?",
    ),
    "very deep": ("a: " + "[" * 3000 + "]" * 3000, "too deep"),
}


@pytest.mark.parametrize(("text", "says"), NOT_ONE.values(), ids=NOT_ONE)
def test_what_is_not_one_job_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadManifest, match=says.replace("?", r"\?")):
        parse_job(text, "job.yaml")


NO_VALUES = {
    "a date that is none": ("2024-13-45", "'2024-13-45' is no timestamp; quote it"),
    "a time that is none": ("2024-01-01 25:00:00", "is no timestamp"),
    "a number of thousands of digits": ("9" * 5000, "is no int"),
    "digits of base 2 without a digit": ("0b_", "'0b_' is no int"),
    "a tagged number without a digit": ("!!int ''", "'' is no int"),
    "a tagged number that is text": ("!!int x", "'x' is no int"),
    "a tagged fraction without a digit": ("!!float ''", "'' is no float"),
    "a tagged truth that is none": ("!!bool x", "'x' is no bool"),
    "a tagged time that is none": ("!!timestamp x", "'x' is no timestamp"),
    "a tagged time that is a list": ("!!timestamp [x]", "expected a scalar node"),
    "bytes that are none": ("!!binary a", "failed to decode base64"),
    "a control character": ('"\x07"', "U+0007 may not stand in it"),
}


@pytest.mark.parametrize(("text", "says"), NO_VALUES.values(), ids=NO_VALUES)
def test_a_value_that_is_not_what_it_is_written_as_is_refused_by_line(text: str, says: str) -> None:
    with pytest.raises(BadManifest, match=re.escape(says)) as refused:
        parse_job(TEXT.replace("buy 7 kiwi", text), "job.yaml")
    assert str(refused.value).startswith("job.yaml:13: not YAML: ")


def test_other_objects_may_stand_beside_the_job() -> None:
    assert parse_job(f"kind: ConfigMap\n---\n{TEXT}---\n").metadata.name == "shop"


def test_files_are_read_and_their_faults_told(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    with pytest.raises(BadManifest, match="No such file"):
        load_job(path)
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert load_job(path).metadata.name == "shop"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadManifest, match="not UTF-8"):
        load_job(path)
    path.write_bytes(b"#" * (MANIFEST_BYTES_MAX + 1))
    with pytest.raises(BadManifest, match="put the tasks into a file"):
        load_job(path)


def tasks(**block: object) -> TasksSpec:
    return decode(TasksSpec, block, "spec.tasks")


def test_tasks_are_read_from_lines(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"uid": "a", "prompt": "x"}\n\n{"uid": "b", "data": {"n": 1}}\n')
    assert [(task.uid, task.prompt, task.data) for task in load_tasks(tasks(file="t.jsonl"), tmp_path)] == [
        ("a", "x", None),
        ("b", "", {"n": 1}),
    ]


ENDS = {
    "lines that end as on Unix": '{"uid": "a", "prompt": "x"}\n{"uid": "b"}\n',
    "as on Windows": '{"uid": "a", "prompt": "x"}\r\n{"uid": "b"}\r\n',
    "as on an old Mac": '{"uid": "a", "prompt": "x"}\r{"uid": "b"}',
    **{
        f"a text with {name}": f'{{"uid": "a", "prompt": "x{char}y"}}\n{{"uid": "b"}}'
        for name, char in {"U+2028": "\u2028", "U+2029": "\u2029", "U+0085": "\u0085"}.items()
    },
    "a byte order mark": '\ufeff{"uid": "a", "prompt": "x"}\n{"uid": "b"}',
    "blanks that are no line's end between JSON's words": '{"uid": "a"}\n \u0085\x0b\x0c\n{"uid": "b"}\n',
}


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS)
async def test_a_config_map_has_the_tasks_that_a_file_has(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.jsonl").write_bytes(text.encode())
    here = load_tasks(tasks(file="t.jsonl"), tmp_path)
    assert [task.uid for task in here] == ["a", "b"]
    kube = FakeKube(time.time)
    meta = {"name": "tasks", "namespace": "lab"}
    await kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"t": text}})
    made = spoilt(("metadata.namespace", "lab"), ("spec.tasks", {"configMap": {"name": "tasks", "key": "t"}}))
    assert await fixed_tasks(kube, decode(RolloutJob, made)) == here


FILES = {
    "not JSON": ('{"uid": "a"}\n{"uid"\n', r"t\.jsonl:2: not JSON"),
    "no uid": ("{}\n", r"t\.jsonl:1: uid: is missing"),
    "an unknown field": ('{"uid": "a", "promt": "x"}\n', "did you mean prompt"),
    "the same uid twice": (
        '\n{"uid": "b"}\n\n{"uid": "a"}\n{"uid": "c"}\n\n{"uid": "a"}\n',
        r"t\.jsonl:7: uid: 'a' stands there twice: line 4 has it too$",
    ),
    "nothing": ("\n", "holds no task"),
    "a list": ("[]\n", r"t\.jsonl:1: must be an object, not a list"),
    "not text": ("\n" * 9000 + "\udcff\n", r"t\.jsonl:9001: not UTF-8 text"),
    "UTF-16": (
        '{"uid": "a"}\n'.encode("utf-16").decode("utf-8", "surrogateescape"),
        r"t\.jsonl:1: not UTF-8 text",
    ),
    "UTF-16 without a mark": (
        '{"uid": "a"}\n'.encode("utf-16-le").decode(),
        "holds NUL characters; is it UTF-8 text?",
    ),
    "a key twice": (
        '{"uid": "a"}\n{"uid": "b", "prompt": "x", "prompt": "y"}\n',
        r"t\.jsonl:2: prompt: stands there twice",
    ),
    "a key twice within the data": (
        '{"uid": "a", "data": {"n": 1, "n": 1}}\n',
        r"t\.jsonl:1: n: stands there twice",
    ),
    "a line without an end": ("x" * (LINE_CHARS_MAX + 1), r"t\.jsonl:1: longer than 4194304 characters"),
}


@pytest.mark.parametrize(("text", "says"), FILES.values(), ids=FILES)
def test_a_bad_task_file_is_refused_by_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "t.jsonl").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadManifest, match=says) as refused:
        load_tasks(tasks(file="t.jsonl"), tmp_path)
    assert refused.value.field == "spec.tasks.file"


def test_tasks_that_cannot_be_read_are_refused_and_those_of_a_queue_come_later(tmp_path: Path) -> None:
    assert load_tasks(tasks(queue={}), tmp_path) == ()
    with pytest.raises(Unsupported):
        load_tasks(tasks(configMap={"name": "tasks", "key": "tasks.jsonl"}), tmp_path)
    with pytest.raises(BadManifest, match="No such file"):
        load_tasks(tasks(file="none.jsonl"), tmp_path)
    with pytest.raises(BadManifest, match="twice"):
        load_tasks(tasks(inline=[{"uid": "a"}, {"uid": "a"}]), tmp_path)
