"""The journal: what every run did and where it stands, in one SQLite database that survives whatever happens."""
