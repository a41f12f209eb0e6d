"""Tables, verdicts, galleries and HTML, made from records."""
