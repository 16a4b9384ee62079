"""What a hostile program leaves as its result: JSON by Python's reading, and nothing that anybody can keep."""

from __future__ import annotations

HOSTILE: dict[str, bytes] = {
    "half a character": rb'{"reward": 1, "reward_info": {"a": "\ud800"}}',
    "half a character as a name": rb'{"reward": 1, "reward_info": {"\udfff": 1}}',
    "NaN": b'{"reward": 1, "reward_info": {"a": NaN}}',
    "Infinity": b'{"reward": 1, "reward_info": {"a": [-Infinity]}}',
    "a number beyond float64": b'{"reward": 1, "reward_info": {"a": 1e999}}',
    "an integer of 65 bits": b'{"reward": 1, "reward_info": {"a": 18446744073709551616}}',
    "a negative integer of 65 bits": b'{"reward": 1, "reward_info": {"a": -9223372036854775809}}',
    "lists in 101 levels": b'{"reward": 1, "reward_info": {"a": ' + b"[" * 101 + b"]" * 101 + b"}}",
    "objects in 600 levels": b'{"reward": 1, "reward_info": ' + b'{"a":' * 600 + b"1" + b"}" * 601,
}
"""A reward that can be taken, beside an info that cannot be kept."""

NO_REWARD: dict[str, bytes] = {
    "a reward that is NaN": b'{"reward": NaN, "reward_info": {"a": 1}}',
    "a reward that is an integer of 400 digits": b'{"reward": ' + b"9" * 400 + b"}",
    "brackets and nothing else": b"[" * 4096,
    "bytes that are no text": bytes(range(128, 256)) * 32,
    "NULs": b"\0" * 4096,
}
"""Nothing that can be taken."""
