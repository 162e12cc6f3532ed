"""The schema of a run's record, and its file. Imports no other package of the harness."""
