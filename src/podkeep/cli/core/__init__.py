"""What every verb stands on: global options, reaching a runtime, forms of output, completion.

Offers ``pass_invocation`` (the configuration), ``connection.run`` (a CRI client for one operation), ``background`` (a
runtime that is started if none answers), ``output`` (JSON, tables, errors) and ``verbs`` (groups that import lazily).
For the modules of ``podkeep.cli`` only.
"""
