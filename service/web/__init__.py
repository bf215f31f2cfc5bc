"""The dashboard: server-rendered pages and their scripts, below `/`.

Enters: a browser's session, query strings and forms. Leaves: HTML, and the scripts' and styles' files. It calls the actions and
routes of the domain rooms and owns no rule of its own; no domain room knows it.
"""
