"""The new-task form and the spec that it makes, both ways.

Enters: a form's fields, or a task's spec. Leaves: an unchecked spec with what could not be read, or the fields that make this
spec again. It knows no page and no request."""
