"""Whether a launch is right and keeps its contracts."""
