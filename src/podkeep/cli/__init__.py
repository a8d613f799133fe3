"""The command line: a module for each verb, imported only when that verb is called.

``main`` has the list of verbs. Verbs that belong together are a package; its ``command`` is the group that they form.
Nothing imports this package but the program and its tests.
"""
