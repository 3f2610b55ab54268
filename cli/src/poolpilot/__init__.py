"""The `poolpilot` command: lazy subcommands that name the extra they need."""
