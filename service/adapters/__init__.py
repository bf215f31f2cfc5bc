"""Trained adapters: list, describe, delete, download file by file or as an archive.

Enters: committed manifests of objects. Leaves: PEFT folders with a README. Knows no training and no placements."""
