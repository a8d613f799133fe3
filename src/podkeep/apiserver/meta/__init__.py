"""What every object and answer has in common: ``Status`` errors, label and field selectors. Pure."""
