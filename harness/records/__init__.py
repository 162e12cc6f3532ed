"""What a run leaves on disk: the schema of its lines, and the file. Imports no other package of the harness."""
