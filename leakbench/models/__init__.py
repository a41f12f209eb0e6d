"""Networks as plugins, one file a family (`leakbench.architectures` finds and builds them)."""
