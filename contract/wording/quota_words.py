"""What a tenant's quotas are called in tables and forms. Pure: knows no limits."""


def quota_words(word: str) -> dict[str, str]:
    """By the API's field; `word` is what the fleet's devices are called."""
    return {
        "running_gpus": f"{word}s at once",
        "queued_tasks": "waiting tasks",
        "stored_bytes": "stored bytes",
        "month_tokens": "tokens this month",
    }
