"""A search with the unmodified OpenAI SDK: what it leaves at `auto` is searched, a search of one's own goes into `extra_body`.

python examples/with_openai_sdk.py                  (with `motet up` running in another terminal)
"""

import json
import os
import time
from pathlib import Path

from openai import OpenAI

ROWS = Path(__file__).parent / "restaurants" / "train.jsonl"


def connect() -> OpenAI:
    """The stack on this machine, or the service that MOTET_API_URL and MOTET_API_KEY name."""
    state = Path(os.environ.get("MOTET_STATE_DIR", Path.home() / ".local/state/motet"))
    stack = json.loads((state / "credentials.json").read_text()) if "MOTET_API_URL" not in os.environ else {}
    url = os.environ.get("MOTET_API_URL") or stack["api_url"]
    return OpenAI(base_url=f"{url}/openai/v1", api_key=os.environ.get("MOTET_API_KEY") or stack["demo_key"])


def main() -> None:
    client = connect()
    file = client.files.create(file=ROWS.open("rb"), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(
        model="example-7m",
        training_file=file.id,
        suffix="with-the-sdk",
        extra_body={
            "search_space": {"learning_rate": [1e-3, 5e-3], "rank": 8},
            "training": {"epochs": 1, "max_steps": 6, "max_seq_len": 160},
        },
    )
    while job.status not in ("succeeded", "failed", "cancelled"):
        time.sleep(1)
        job = client.fine_tuning.jobs.retrieve(job.id)
    for event in client.fine_tuning.jobs.list_events(job.id, limit=5):
        print(event.message)
    print(job.status, job.fine_tuned_model, job.result_files)


if __name__ == "__main__":
    main()
