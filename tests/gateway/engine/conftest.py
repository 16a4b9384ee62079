"""The engines that the conformance suite runs on."""

from __future__ import annotations

from tests.support.vllm import vllm as vllm
