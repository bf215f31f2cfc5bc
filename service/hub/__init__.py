"""The hub over HTTP: repositories of models and of data sets, read and written through the SSRF guard.

Enters: a repository's name, a revision, a token; blocks of files to write. Leaves: its description at a commit, small files,
ranges of large ones, commits, and refusals in words. It must not know model formats, rows, tables or tenants."""
