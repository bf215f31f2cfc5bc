"""Installing, starting and backing up Motet on one machine. May see every other room; none sees it."""
