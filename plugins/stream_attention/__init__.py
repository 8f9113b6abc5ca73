"""`quatrain::StreamFactorizedAttention`: attention of every stream over its own history."""
