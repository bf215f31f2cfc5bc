"""Rows of a data set as tokens, alike for the training worker and the service's preview.

Enters: rows whose form is checked, and a tokenizer with its chat template. Leaves: tokens and which of them are learned. It
must not know files, splits or training."""
