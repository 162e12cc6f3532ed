"""Is a launch right, and does it pass every check of harness/checks.py?"""
