"""The OpenAI-compatible API at /openai/v1: translates only, and calls the same actions as the native API.

Enters: requests and ids as OpenAI's SDK sends them. Leaves: OpenAI's objects, events and errors. It must not hold a rule about
tasks, files or adapters."""
