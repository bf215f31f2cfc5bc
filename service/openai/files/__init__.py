"""Files: data sets, and what jobs leave.

Enters: uploads, files, and tasks that have ended. Leaves: OpenAI's files and their contents. It must not know models."""
