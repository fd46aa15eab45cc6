"""Maps tasks to worker processes of this machine or of a cluster, and keeps what is done; knows nothing of traces."""
