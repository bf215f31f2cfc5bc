"""The message and document types that service and workers exchange. Depends on pydantic alone. Knows neither side."""
