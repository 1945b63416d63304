"""Records on disk: a folder of ArrayRecord shards whose examples are read by their indices."""
