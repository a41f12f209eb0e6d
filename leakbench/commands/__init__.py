"""The command line: options, sentences and exit codes; the work is done elsewhere."""
