"""Fine-tuning jobs, which are tasks: their requests, objects, events and checkpoints.

Enters: OpenAI's requests, and tasks. Leaves: task specs, and OpenAI's jobs. It must not know files."""
