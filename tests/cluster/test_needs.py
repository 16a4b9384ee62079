"""Where a cluster cannot run, tests skip and say what is missing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.cluster.harness.needs import why_no_api_server, why_no_cluster


def test_without_root_there_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_no_cluster() in ("a real cluster needs root", "a real cluster needs go")


def test_what_is_neither_built_nor_can_be_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert why_no_api_server() == "a real kube-apiserver needs openssl, setpriv, go"
    assert why_no_cluster() == "a real cluster needs go"


def test_other_systems_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert why_no_cluster() == "a real cluster runs on Linux only"
    assert why_no_api_server() == "a real kube-apiserver runs on Linux only"
