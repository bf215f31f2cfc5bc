"""Base models and tuned models by their names.

Enters: a name. Leaves: OpenAI's model, and what is asked or trained on by that name. It must not know requests."""
