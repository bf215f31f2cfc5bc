"""What the service and the workers say to each other. Depends on pydantic alone and knows neither side."""
