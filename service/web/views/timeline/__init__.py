"""The cluster page's timeline. Nodes, placements and what the plan says enter; lanes, bars and ticks in SVG coordinates leave.
Knows no page."""
