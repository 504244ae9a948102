"""Supervised processes: started, streamed, ended, and proven gone. The sentinel imports this package: keep it empty."""
