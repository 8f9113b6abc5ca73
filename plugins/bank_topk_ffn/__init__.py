"""`quatrain::BankTopKFeedForward`: a predictor picks the channels that run."""
