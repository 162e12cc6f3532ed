"""From YAML to cells: the configuration and the sweep it describes. Never imports torch."""
