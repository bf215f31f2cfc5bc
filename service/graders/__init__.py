"""Endpoint graders: the service posts generated texts to tenants' own endpoints, which answer scores.

Enters: texts that a worker reported. Leaves: their scores, or why there are none. It must not know what scores mean to a task,
and never delays one: texts wait in tables, and a courier of a background process sends them through the SSRF guard."""
