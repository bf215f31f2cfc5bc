"""Uploads in parts, at the end of which there is a file.

Enters: OpenAI's requests, and parts as multipart bodies. Leaves: OpenAI's uploads and parts. It must not know jobs."""
