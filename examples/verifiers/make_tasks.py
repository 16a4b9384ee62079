"""Write the tasks of env.toml's environment as a RolloutJob's: `python make_tasks.py > tasks.jsonl`."""

from __future__ import annotations

import json

from agent import load  # type: ignore[import-not-found, unused-ignore]


def main() -> None:
    for task in load().taskset:
        data = task.data
        uid = f"{data.idx}-{task.key[:12]}"
        public = {"idx": data.idx, "key": task.key}
        print(json.dumps({"uid": uid, "prompt": data.prompt_text or uid, "data": {"public": public}}))


if __name__ == "__main__":
    main()
