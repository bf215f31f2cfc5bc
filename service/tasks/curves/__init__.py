"""Loss curves: written in chunks, read by step range, downsampled to buckets for charts.

Enters: points of (job, series, step). Leaves: curves without points hidden by rewinds. It must not know states or reports."""
