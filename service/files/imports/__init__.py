"""Data sets by name: found at their source, fetched in the background, checked as an upload is, kept as files.

Enters: `hf://datasets/organisation/name` with a revision and a path, an https URL, or `s3://bucket/key`. Leaves: a row that
says how far it is, and at its end a file. It must not know tasks, nor how rows are checked."""
