"""How versions live together: the package's version, the protocol, what a worker understands of specs, lenient reading.

Enters: documents and numbers of another version. Leaves: what this version can make of them, or words that say why not.
It must not know how a document is stored or sent."""
