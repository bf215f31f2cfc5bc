"""Adapters that tasks made: listed, described, downloaded file by file or as an archive.

Enters: committed manifests of objects. Leaves: PEFT folders with a README. It must not know training or placements."""
