"""A real vLLM for one test of this room."""

from tests.support.vllm import vllm as vllm
