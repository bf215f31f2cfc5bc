"""The allow-list of base models: folders that every node has, and those that nodes fetch from the hub or from storage.

Enters: a folder, `hf://organisation/name` with a revision, or uploaded files. Leaves: a row of the allow-list, for one that
nodes fetch with its files by sha256; what is large is downloaded in copies/ alone. It must not know tenants, nor placements."""
