"""Uploads in parts: begun with the file's size, sent part by part, put together to a file.

Enters: parts in any order, through any API process. Leaves: a file, checked as one that comes whole. Knows no HTTP."""
