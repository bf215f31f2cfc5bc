"""Version compatibility: the package's version, the protocol, capabilities of workers, lenient reading of documents.

Enters: documents and numbers of another version. Leaves: what this version can read of them, or the reason why it cannot. It
must not know how a document is stored or sent.
"""
