"""The same walk with the SDK's asynchronous client, in short. Run as a program, as walk_sync.py is."""

import asyncio
import os
import sys

import openai
import pytest
from openai import AsyncOpenAI

from tests.service.openai.walk_sync import ENDED, ROWS, SPACE


async def main() -> None:
    key, url = os.environ["KEY"], os.environ["BASE_URL"]
    async with AsyncOpenAI(base_url=url, api_key=key, _strict_response_validation=True, max_retries=0) as client:
        said = {"filename": "train.jsonl", "bytes": len(ROWS), "mime_type": "text/jsonl", "purpose": "fine-tune"}
        file = (await client.uploads.upload_file_chunked(file=ROWS, part_size=300, **said)).file
        jobs = client.fine_tuning.jobs
        made = await jobs.create(model="small", training_file=file.id, extra_body={"search_space": SPACE})
        while (now := await jobs.retrieve(made.id)).status not in ENDED:
            await asyncio.sleep(0.05)
        assert now.status == "succeeded"
        events = [event async for event in jobs.list_events(made.id, limit=4)]
        assert events[0].message == "The job has succeeded"
        assert [checkpoint async for checkpoint in jobs.checkpoints.list(made.id)]
        table = (await client.files.content(now.result_files[0])).text
        assert table.startswith("job,step,train_loss,valid_loss")
        assert now.fine_tuned_model in [model.id async for model in client.models.list()]
        with pytest.raises(openai.BadRequestError, match="already succeeded"):
            await jobs.cancel(made.id)
    sys.stdout.write(openai.__version__ + "\n")


if __name__ == "__main__":
    asyncio.run(main())
