"""The OpenAI-compatible face at /openai/v1: translation only. What it does, the native API's actions do."""
