"""What was measured, of which files, on which machine: records that other verbs can read."""
