"""The OpenAI-compatible API at /openai/v1: translates only, and calls the same actions as the native API."""
