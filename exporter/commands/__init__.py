"""The verbs of `quatrain`, one a file: flags, one call of the library, and its result shown."""
