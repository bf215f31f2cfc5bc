"""HTTP plumbing that knows no domain: middleware, problem responses, pagination, idempotency, downloads, the OpenAPI document.

Enters: requests, and exceptions that domain rooms raise. Leaves: responses in one shape (RFC 9457 problems, keyset pages).
It must not know tasks, files, tenants or nodes by name; domain rooms import it, never the other way round."""
