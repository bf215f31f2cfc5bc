"""OpenTelemetry traces: spans as values, the trace of a request, their export to a collector over OTLP/HTTP.

Enters: spans that have ended, from any thread. Leaves: OTLP as JSON, in batches, from a thread of its own. Off unless
MOTET_OTLP_ENDPOINT is set. It must not know tasks, and nothing may wait for it."""
