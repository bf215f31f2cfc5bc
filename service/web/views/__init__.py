"""View models: what templates show, computed from API resources. Pure but for a few queries.

Enters: resources and rows. Leaves: numbers, words, coordinates. Knows no request and no HTML."""
