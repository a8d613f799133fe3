"""The command line: a module for each verb, imported only when that verb is called."""
