"""The service's API as Python calls: `Client`, typed answers, credentials, transport with retries.

Enters: calls. Leaves: typed values or one readable error. It must not know a terminal."""
