"""Results as tables, listings and a comment for a pull request. Never imports torch."""
