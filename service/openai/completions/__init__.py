"""Chat and text completions: bases and adapters answer, whole or as server-sent events.

Enters: OpenAI's requests, and pieces of answers. Leaves: OpenAI's completions and chunks. It must not know jobs and files."""
