"""`quatrain::ExitRouter`: the state an exit sees, and whether to leave there."""
