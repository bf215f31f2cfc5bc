"""The allow-list of base models: folders that every node has, and repositories of the hub that nodes fetch by themselves.

Enters: a folder, or `hf://organisation/name` with a revision. Leaves: a row of the allow-list, for one on the hub with its
files by sha256; of the hub only small files are downloaded here. It must not know tenants, nor placements."""
