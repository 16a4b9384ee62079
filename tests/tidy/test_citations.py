"""What is cited is here: pages, rules of matching, links, and the modules that the walls speak of."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from sandgate.gateway.conversation.rules_page import RULES
from tests.tidy import walls
from tests.tidy.source import ROOT, module_names, parse, tracked

PAGE = re.compile(r"(?<![\w/.*-])(?:\.\./)*([\w-][\w./-]*\.md)\b(?!\.)")
"""A page's name in running text; not one at the end of a URL."""
RULE = re.compile(r"\bN([1-9][0-9]?)\b")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"``[^\n]*?``|`[^`\n]*`")
ELSEWHERE = ("http://", "https://", "mailto:")


@cache
def pages() -> frozenset[str]:
    return frozenset(str(path.relative_to(ROOT)) for path in tracked() if path.suffix == ".md")


def is_here(name: str) -> bool:
    """By its path, or by the end of it: `records.md` is docs/reference/records.md."""
    return any(page == name or page.endswith(f"/{name}") for page in pages())


def remarks(path: Path) -> Iterator[tuple[int, str]]:
    """Comments of a Python file, and strings that stand alone: what is written for readers. Nothing of a file without
    a page's name."""
    if ".md" not in path.read_text("utf-8"):
        return  # reading every file as tokens takes 15 s
    for node in ast.walk(parse(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text), lineno=line)):
                yield from enumerate(text.splitlines(), line)
    for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """What a file says to its readers, with line numbers; examples in fences are their own affair."""
    if path.suffix == ".py":
        yield from remarks(path)
        return
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        return
    yield from enumerate(without_fences(text).splitlines() if path.suffix == ".md" else text.splitlines(), 1)


def without_fences(text: str) -> str:
    """The same lines, those between fences empty."""
    return FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)


def test_every_page_that_is_named_is_here() -> None:
    """A reader can open it. What is not in this repository is linked by its address, or said in the place itself."""
    missing = [
        f"{path.relative_to(ROOT)}:{line}: {name} is not in this repository"
        for path in tracked()
        for line, text in prose(path)
        for name in PAGE.findall(text)
        if not is_here(name)
    ]
    assert not missing, "\n".join(missing)


def test_every_rule_of_matching_that_is_cited_is_in_the_table() -> None:
    known = {rule.number for rule in RULES}
    unknown = [
        f"{path.relative_to(ROOT)}: N{number} is not in gateway/sandgate/gateway/conversation/rules_page.py"
        for path in tracked()
        if path.suffix in (".py", ".md")
        for number in RULE.findall(path.read_text("utf-8"))
        if int(number) not in known
    ]
    assert not unknown, "\n".join(unknown)


@cache
def anchors(path: Path) -> frozenset[str]:
    """Of a page's headings, as GitHub makes them."""
    found: list[str] = []
    for heading in HEADING.findall(without_fences(path.read_text("utf-8"))):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return frozenset(found)


def test_every_link_of_a_page_leads_somewhere() -> None:
    broken = []
    for path in (ROOT / page for page in sorted(pages())):
        for target in LINK.findall(CODE.sub("code", without_fences(path.read_text("utf-8")))):
            if target.startswith(ELSEWHERE):
                continue
            to, _, anchor = target.partition("#")
            file = (path.parent / to).resolve() if to else path
            if not file.exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}: there is no such file")
            elif anchor and anchor not in anchors(file):
                broken.append(f"{path.relative_to(ROOT)}: {target}: the page has no such heading")
    assert not broken, "\n".join(broken)


ENTRIES = {
    "SHELL": walls.SHELL,
    "PURE_IN_SHELL": walls.PURE_IN_SHELL,
    "FRONT_DOORS": (*walls.FRONT_DOORS, *(door for doors in walls.FRONT_DOORS.values() for door in doors)),
    "SIDE_DOORS": (*walls.SIDE_DOORS, *(door for doors in walls.SIDE_DOORS.values() for door in doors)),
    "HOMES": tuple(home for homes in walls.HOMES.values() for home in homes),
}


@pytest.mark.parametrize("table", ENTRIES)
def test_every_module_of_a_table_of_walls_is_there(table: str) -> None:
    """An entry for a module that has gone would let a new one of that name through unseen."""
    gone = [one for one in ENTRIES[table] if not any(fnmatch(name, one) for name in module_names())]
    assert not gone, f"{table} of tests/tidy/walls.py speaks of modules that are not there: {gone}"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("as in api.md section 2", ["api.md"]),
        ("(docs/models.md) and `cli.md`.", ["docs/models.md", "cli.md"]),
        ("../trainers/arrow.md", ["trainers/arrow.md"]),
        ("https://example.com/x/README.md", []),
        ("every *.md of a folder", []),
    ],
)
def test_names_of_pages_are_found_in_running_text(text: str, names: list[str]) -> None:
    assert PAGE.findall(text) == names
